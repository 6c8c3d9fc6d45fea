/*
 * functions.c
 *		The SQL functions of the extension.
 */
#include "cbrepl_source.h"

#include "access/xlog.h"
#include "replication/slot.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#ifdef CBREPL_GREENPLUM
#include "utils/snapmgr.h"
#include "utils/tqual.h"
#else
#include "replication/message.h"
#endif

PG_FUNCTION_INFO_V1(cbrepl_source_version);
PG_FUNCTION_INFO_V1(cbrepl_source_flush_lsn);
PG_FUNCTION_INFO_V1(cbrepl_source_confirmed_lsn);
PG_FUNCTION_INFO_V1(cbrepl_source_distributed_snapshot);
PG_FUNCTION_INFO_V1(cbrepl_source_emit_message);

Datum		cbrepl_source_version(PG_FUNCTION_ARGS);
Datum		cbrepl_source_flush_lsn(PG_FUNCTION_ARGS);
Datum		cbrepl_source_confirmed_lsn(PG_FUNCTION_ARGS);
Datum		cbrepl_source_distributed_snapshot(PG_FUNCTION_ARGS);
Datum		cbrepl_source_emit_message(PG_FUNCTION_ARGS);

#define MAX_CONTENT_BYTES (1024 * 1024)

Datum
cbrepl_source_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(CBREPL_SOURCE_VERSION));
}

static text *
lsn_text(XLogRecPtr lsn)
{
	char		buffer[2 * 8 + 2];

	snprintf(buffer, sizeof(buffer), "%X/%X", (uint32) (lsn >> 32), (uint32) lsn);
	return cstring_to_text(buffer);
}

/* The position up to which WAL is on disk: what a walsender can read now. */
Datum
cbrepl_source_flush_lsn(PG_FUNCTION_ARGS)
{
#ifdef CBREPL_GREENPLUM
	XLogRecPtr	lsn = GetFlushRecPtr();
#else
	XLogRecPtr	lsn = GetFlushRecPtr(NULL);
#endif
	PG_RETURN_TEXT_P(lsn_text(lsn));
}

/* The confirmed position of a slot, which pg_replication_slots of 9.4 does not show. */
Datum
cbrepl_source_confirmed_lsn(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	XLogRecPtr	confirmed = InvalidXLogRecPtr;
	bool		found = false;
	int			i;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		if (!slot->in_use || strcmp(NameStr(slot->data.name), name) != 0)
			continue;
		SpinLockAcquire(&slot->mutex);
		confirmed = slot->data.confirmed_flush;
		SpinLockRelease(&slot->mutex);
		found = true;
		break;
	}
	LWLockRelease(ReplicationSlotControlLock);

	if (!found)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(lsn_text(confirmed));
}

/*
 * "timestamp xmin xmax gxid gxid ..." of the active distributed snapshot: it
 * sees every gxid of this timestamp below xmax that is not listed.
 */
Datum
cbrepl_source_distributed_snapshot(PG_FUNCTION_ARGS)
{
#ifdef CBREPL_GREENPLUM
	Snapshot	snapshot = GetActiveSnapshot();
	DistributedSnapshot *ds = &snapshot->distribSnapshotWithLocalMapping.ds;
	StringInfoData text;
	int			i;

	if (!snapshot->haveDistribSnapshot)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this session has no distributed snapshot"),
				 errhint("Call the function on the coordinator, not in utility mode.")));
	initStringInfo(&text);
	appendStringInfo(&text, "%u %u %u", ds->distribTransactionTimeStamp, ds->xmin, ds->xmax);
	for (i = 0; i < ds->count; i++)
		appendStringInfo(&text, " %u", ds->inProgressXidArray[i]);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(text.data, text.len));
#else
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("this server has no distributed snapshots")));
	PG_RETURN_NULL();
#endif
}

/* A message in the stream of the node that runs this, sent if the transaction commits. */
Datum
cbrepl_source_emit_message(PG_FUNCTION_ARGS)
{
	char	   *prefix = text_to_cstring(PG_GETARG_TEXT_PP(0));
	text	   *content = PG_GETARG_TEXT_PP(1);

	if (VARSIZE_ANY_EXHDR(content) > MAX_CONTENT_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a message has at most %d bytes", MAX_CONTENT_BYTES)));
#ifdef CBREPL_GREENPLUM
	{
		StringInfoData body;

		initStringInfo(&body);
		appendBinaryStringInfo(&body, prefix, strlen(prefix) + 1);
		appendBinaryStringInfo(&body, VARDATA_ANY(content), VARSIZE_ANY_EXHDR(content));
		log_wal_message(WAL_MESSAGE_PLAIN, body.data, body.len);
		pfree(body.data);
	}
#else
	LogLogicalMessage(prefix, VARDATA_ANY(content), VARSIZE_ANY_EXHDR(content), true);
#endif
	PG_RETURN_VOID();
}

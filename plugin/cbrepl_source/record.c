/*
 * record.c
 *		What the transaction records of Greenplum 6's WAL say.
 *
 * Their lengths are checked against the record's before anything behind the
 * fixed part is read.
 */
#include "cbrepl_source.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "cdb/cdbtm.h"
#include "storage/relfilenode.h"
#include "storage/sinval.h"

/* twophase.c keeps these to itself. */
#define TWOPHASE_MAGIC 0x57F94532
#define GIDSIZE 200

typedef struct TwoPhaseFileHeader
{
	uint32		magic;
	uint32		total_len;
	TransactionId xid;
	Oid			database;
	TimestampTz prepared_at;
	Oid			owner;
	int32		nsubxacts;
	int32		ncommitrels;
	int32		nabortrels;
	int32		ncommitdbs;
	int32		nabortdbs;
	int32		ninvalmsgs;
	bool		initfileinval;
	Oid			tablespace_oid_to_delete_on_abort;
	Oid			tablespace_oid_to_delete_on_commit;
	char		gid[GIDSIZE];
} TwoPhaseFileHeader;

static void
require_length(const XLogRecord *record, uint64 needed)
{
	if (record->xl_len < needed)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("transaction record 0x%02x of transaction %u has %u bytes, expected at least " UINT64_FORMAT,
						record->xl_info & ~XLR_INFO_MASK, record->xl_xid, record->xl_len, needed)));
}

static uint64
array_size(const XLogRecord *record, int count, Size item)
{
	if (count < 0)
		require_length(record, PG_UINT32_MAX);
	return (uint64) count * item;
}

static uint64
dtx_id(DistributedTransactionTimeStamp timestamp, DistributedTransactionId gxid)
{
	return (uint64) timestamp << 32 | gxid;
}

/* Parses "<timestamp>-<gxid>"; 0 when gid is not of this form. */
static uint64
parse_gid(const char *gid, Size size)
{
	uint64		numbers[2] = {0, 0};
	int			which = 0;
	Size		i;

	for (i = 0; i < size && gid[i] != '\0'; i++)
	{
		if (gid[i] == '-' && which == 0 && i > 0)
			which = 1;
		else if (gid[i] >= '0' && gid[i] <= '9')
			numbers[which] = numbers[which] * 10 + (gid[i] - '0');
		else
			return 0;
		if (numbers[which] > PG_UINT32_MAX)
			return 0;
	}
	if (i == size || which == 0)
		return 0;
	return dtx_id((uint32) numbers[0], (uint32) numbers[1]);
}

/* The body that all forms of commit records share; returns where the arrays end. */
static uint64
read_commit_body(const XLogRecord *record, const xl_xact_commit *commit, Size fixed, CommitFacts *facts)
{
	uint64		end;

	require_length(record, fixed);
	end = fixed + array_size(record, commit->nrels, sizeof(RelFileNodePendingDelete));
	facts->subxids = (const TransactionId *) ((const char *) XLogRecGetData(record) + end);
	end += array_size(record, commit->nsubxacts, sizeof(TransactionId));
	end += array_size(record, commit->nmsgs, sizeof(SharedInvalidationMessage));
	require_length(record, end);

	facts->database = commit->dbId;
	facts->time = commit->xact_time;
	facts->nsubxids = commit->nsubxacts;
	return end;
}

void
read_commit(const XLogRecord *record, CommitFacts *facts)
{
	char	   *data = XLogRecGetData(record);

	memset(facts, 0, sizeof(*facts));
	facts->xid = record->xl_xid;
	switch (record->xl_info & ~XLR_INFO_MASK)
	{
		case XLOG_XACT_COMMIT:
			{
				xl_xact_commit *commit = (xl_xact_commit *) data;

				read_commit_body(record, commit, MinSizeOfXactCommit, facts);
				if (commit->distribXid != InvalidDistributedTransactionId)
				{
					facts->part.kind = PART_ONE_PHASE;
					facts->part.dtx = dtx_id(commit->distribTimeStamp, commit->distribXid);
				}
				break;
			}
		case XLOG_XACT_COMMIT_PREPARED:
			{
				xl_xact_commit_prepared *prepared = (xl_xact_commit_prepared *) data;

				read_commit_body(record, &prepared->crec, MinSizeOfXactCommitPrepared, facts);
				facts->xid = prepared->xid;
				facts->part.kind = PART_TWO_PHASE;
				facts->part.dtx = dtx_id(prepared->distribTimeStamp, prepared->distribXid);
				break;
			}
		case XLOG_XACT_DISTRIBUTED_COMMIT:
			{
				TMGXACT_LOG log;
				uint64		end;

				end = read_commit_body(record, (xl_xact_commit *) data, MinSizeOfXactCommit, facts);
				require_length(record, end + sizeof(log));
				memcpy(&log, data + record->xl_len - sizeof(log), sizeof(log));
				facts->part.kind = PART_TWO_PHASE;
				facts->part.dtx = parse_gid(log.gid, sizeof(log.gid));
				if (facts->part.dtx == 0 || (uint32) facts->part.dtx != log.gxid)
					ereport(ERROR,
							(errcode(ERRCODE_DATA_CORRUPTED),
							 errmsg("distributed commit record names global transaction \"%.*s\", gxid %u",
									TMGIDSIZE, log.gid, log.gxid)));
				break;
			}
		case XLOG_XACT_COMMIT_COMPACT:
			{
				xl_xact_commit_compact *compact = (xl_xact_commit_compact *) data;

				/* not written with wal_level = logical: read for its subtransactions only */
				require_length(record, MinSizeOfXactCommitCompact);
				require_length(record, MinSizeOfXactCommitCompact +
							   array_size(record, compact->nsubxacts, sizeof(TransactionId)));
				facts->time = compact->xact_time;
				facts->nsubxids = compact->nsubxacts;
				facts->subxids = compact->subxacts;
				break;
			}
	}
}

void
read_prepare(const XLogRecord *record, PrepareFacts *facts)
{
	TwoPhaseFileHeader *header = (TwoPhaseFileHeader *) XLogRecGetData(record);

	require_length(record, sizeof(*header));
	if (header->magic != TWOPHASE_MAGIC || header->xid != record->xl_xid)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("prepare record of transaction %u has no valid header", record->xl_xid)));
	facts->database = header->database;
	facts->dtx = parse_gid(header->gid, sizeof(header->gid));
}

void
read_abort(const XLogRecord *record, AbortFacts *facts)
{
	char	   *data = XLogRecGetData(record);
	xl_xact_abort *abort_record = (xl_xact_abort *) data;
	Size		fixed = MinSizeOfXactAbort;
	uint64		end;

	facts->xid = record->xl_xid;
	if ((record->xl_info & ~XLR_INFO_MASK) == XLOG_XACT_ABORT_PREPARED)
	{
		fixed = MinSizeOfXactAbortPrepared;
		require_length(record, fixed);
		facts->xid = ((xl_xact_abort_prepared *) data)->xid;
		abort_record = &((xl_xact_abort_prepared *) data)->arec;
	}
	require_length(record, fixed);
	end = fixed + array_size(record, abort_record->nrels, sizeof(RelFileNodePendingDelete));
	facts->subxids = (const TransactionId *) (data + end);
	facts->nsubxids = abort_record->nsubxacts;
	require_length(record, end + array_size(record, facts->nsubxids, sizeof(TransactionId)));
}

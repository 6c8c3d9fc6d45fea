/*
 * takeover.c
 *		The walsender loop of Greenplum 6, run by the plugin.
 *
 * The decoder of Greenplum 6 raises an error at records that it does not know:
 * distributed commits on the coordinator, and the prefetch of relfilenodes on
 * every node.  A plugin's startup callback runs inside the walsender, after it
 * has answered START_REPLICATION and before its own loop, with the decoding
 * context complete.  So the plugin runs the loop there: it reads every record,
 * hands to the decoder what the decoder knows, and sends what the others say.
 *
 * The walsender's own read_page and write callbacks do the waiting, the
 * keepalives, the client's status updates and the timeouts.  No transaction
 * and no snapshot is held between records.  The loop ends
 *
 * - when the client ends the copy: the loop returns, and the server's own loop
 *	 sees that and finishes the protocol;
 * - when the client goes or the postmaster dies: inside the server's callbacks;
 * - when the server stops: by SIGTERM, at CHECK_FOR_INTERRUPTS, because the
 *	 walsender does not count as active before its own loop;
 * - with an error.
 *
 * Memory: the decoder's own (large transactions spill), one record, one row,
 * the relation cache, the messages of open transactions (message.c), and the
 * gxids of prepared transactions, at most max_prepared_transactions.
 */
#include "cbrepl_source.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogreader.h"
#include "catalog/pg_control.h"
#include "libpq/libpq.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "replication/decode.h"
#include "replication/reorderbuffer.h"
#include "replication/slot.h"
#include "replication/snapbuild.h"
#include "storage/ipc.h"
#include "storage/standby.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* Messages are collected up to this size, then written in one piece. */
#define COLLECT_BYTES (32 * 1024)

/* While only records are read that send nothing. */
#define PROGRESS_INTERVAL_MS 50
/* While a transaction is decoded that sends nothing. */
#define KEEPALIVE_INTERVAL_MS 1000
/* Look at the clock only at every so many records or changes. */
#define CLOCK_STRIDE 64

typedef struct PreparedTransaction
{
	TransactionId xid;			/* hash key */
	uint64		dtx;
} PreparedTransaction;

typedef struct Takeover
{
	State	   *state;
	XLogPageReadCB server_read_page;
	HTAB	   *prepared;
	XLogRecPtr	progress;		/* the last one that was sent */
	Size		collected;		/* bytes since the last write to the client */
	TimestampTz last_sent;
	uint32		strides;
} Takeover;

/* read_page has no argument of ours; a walsender runs one stream. */
static Takeover takeover;

/*
 * The state's write function: the server's own write makes a system call for
 * every message, so a message waits in the backend's send buffer until there
 * are enough of them, or until the stream is about to wait for WAL.
 */
static void
collect_message(State *state)
{
	StringInfo	out = state->ctx->out;

	takeover.collected += out->len;
	if (takeover.collected >= COLLECT_BYTES)
	{
		OutputPluginWrite(state->ctx, true);
		takeover.collected = 0;
		takeover.last_sent = GetCurrentTimestamp();
		return;
	}
	pq_putmessage_noblock('d', out->data, out->len);
	state->ctx->prepared_write = false;
}

static void
flush_collected(void)
{
	if (pq_flush_if_writable() != 0)
	{
		/* the client is gone: do as the walsender does */
		if (whereToSendOutput == DestRemote)
			whereToSendOutput = DestNone;
		proc_exit(0);
	}
	takeover.collected = 0;
}

/* Lets messages be written outside of the server's callbacks. */
static void
allow_writes(LogicalDecodingContext *ctx, XLogRecPtr lsn)
{
	ctx->accept_writes = true;
	ctx->write_xid = InvalidTransactionId;
	ctx->write_location = lsn;
}

/* Sends a message that belongs to no transaction; its body is version, then body. */
static void
send_fact(const char *prefix, StringInfo body)
{
	State	   *state = takeover.state;
	XLogRecPtr	end = state->ctx->reader->EndRecPtr;

	allow_writes(state->ctx, end);
	write_message(message_start(state), false, end, prefix, body->data, body->len);
	message_end(state);
	state->ctx->accept_writes = false;
	pfree(body->data);
}

static void
start_body(StringInfo body)
{
	initStringInfo(body);
	pq_sendbyte(body, CBREPL_BODY_VERSION);
}

static void
send_dtx(const char *prefix, uint64 dtx)
{
	StringInfoData body;

	start_body(&body);
	pq_sendint64(&body, dtx);
	send_fact(prefix, &body);
}

static void
send_commit_record(const CommitFacts *facts)
{
	StringInfoData body;

	start_body(&body);
	pq_sendbyte(&body, TransactionIdIsValid(facts->xid) ? 1 : 0);
	pq_sendint64(&body, facts->part.dtx);
	pq_sendint64(&body, facts->time);
	send_fact("cbrepl.commit_record", &body);
}

/* Everything that will ever be sent up to the end of the last record has been sent. */
static void
send_progress(void)
{
	XLogRecPtr	end = takeover.state->ctx->reader->EndRecPtr;
	StringInfoData body;

	/*
	 * The confirmed position itself is sent, too: an idle segment has no other
	 * word that its PREPAREs before that position have all been sent.
	 */
	if (end <= takeover.progress ||
		SnapBuildXactNeedsSkip(takeover.state->ctx->snapshot_builder, end + 1))
		return;
	takeover.progress = end;
	takeover.last_sent = GetCurrentTimestamp();
	start_body(&body);
	pq_sendint64(&body, end);
	send_fact("cbrepl.progress", &body);
}

/*
 * The reader's read_page: where the server would now wait for WAL, the stream
 * has caught up, and the client must learn that.  The server flushes the
 * buffer itself before it sleeps.
 */
static int
read_page(XLogReaderState *reader, XLogRecPtr page, int length,
		  XLogRecPtr target, char *buffer, TimeLineID *timeline)
{
	if (GetFlushRecPtr() < page + length && !XLogRecPtrIsInvalid(reader->EndRecPtr))
	{
		send_progress();
		flush_collected();
	}
	return takeover.server_read_page(reader, page, length, target, buffer, timeline);
}

/* After the takeover has ended nothing may be read with this context again. */
static int
read_no_page(XLogReaderState *reader, XLogRecPtr page, int length,
			 XLogRecPtr target, char *buffer, TimeLineID *timeline)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the stream of cbrepl_source has ended")));
	return -1;
}

static bool
silent_for(int milliseconds)
{
	return ++takeover.strides % CLOCK_STRIDE == 0 &&
		TimestampDifferenceExceeds(takeover.last_sent, GetCurrentTimestamp(), milliseconds);
}

static void
send_keepalive(void)
{
	StringInfoData keepalive;

	takeover.last_sent = GetCurrentTimestamp();
	initStringInfo(&keepalive);
	pq_sendbyte(&keepalive, 'k');
	pq_sendint64(&keepalive, InvalidXLogRecPtr);
	pq_sendint64(&keepalive, GetCurrentIntegerTimestamp());
	pq_sendbyte(&keepalive, 0); /* no reply wanted */
	pq_putmessage_noblock('d', keepalive.data, keepalive.len);
	pfree(keepalive.data);
	flush_collected();
}

/*
 * The state's silent function: a change of a table that is not published was
 * skipped.  A large transaction of such changes would leave the client without
 * a sign of life, and a progress message has no place inside a transaction.
 */
static void
keep_alive(State *state)
{
	if (!silent_for(KEEPALIVE_INTERVAL_MS))
		return;
	CHECK_FOR_INTERRUPTS();
	send_keepalive();
}

/* Between records: lets the client know how far the stream is, or at least that it lives. */
static void
report_progress(void)
{
	if (!silent_for(PROGRESS_INTERVAL_MS))
		return;
	send_progress();
	if (TimestampDifferenceExceeds(takeover.last_sent, GetCurrentTimestamp(), KEEPALIVE_INTERVAL_MS))
		send_keepalive();
	flush_collected();
}

static void
decode(XLogRecord *record)
{
	LogicalDecodingProcessRecord(takeover.state->ctx, record);
}

/*
 * Reports whether the client has confirmed this transaction, or asked to start
 * behind it: by the same test as the decoder's.
 */
static bool
is_confirmed(void)
{
	LogicalDecodingContext *ctx = takeover.state->ctx;

	return SnapBuildXactNeedsSkip(ctx->snapshot_builder, ctx->reader->ReadRecPtr);
}

/*
 * Decodes a commit.  The decoder calls back only for transactions with changes
 * of heap tables; a part that must be sent although it is empty, and messages
 * of a transaction without changes, are sent here.
 */
static void
process_commit(XLogRecord *record, const CommitFacts *facts)
{
	State	   *state = takeover.state;
	LogicalDecodingContext *ctx = state->ctx;
	bool		ours = facts->database == ctx->slot->data.database && !is_confirmed();

	state->part = facts->part;
	state->block.begun = false;
	state->block.unsent = false;
	if (ours)
		state->messages = take_wal_messages(facts->xid, facts->nsubxids, facts->subxids,
											&state->nmessages);

	decode(record);

	if (ours && !state->block.begun &&
		(facts->part.kind == PART_TWO_PHASE || state->next_message < state->nmessages))
	{
		state->block.xid = facts->xid;
		state->block.commit_lsn = ctx->reader->ReadRecPtr;
		state->block.end_lsn = ctx->reader->EndRecPtr;
		state->block.commit_time = facts->time;
		allow_writes(ctx, ctx->reader->EndRecPtr);
		block_start(state);
		send_wal_messages(state, InvalidXLogRecPtr);
		block_finish(state);
		ctx->accept_writes = false;
	}
	drop_wal_messages(facts->xid, facts->nsubxids, facts->subxids);
	state->messages = NULL;
	state->nmessages = state->next_message = 0;
	state->part.kind = PART_LOCAL;
}

static void
process_distributed_commit(XLogRecord *record)
{
	CommitFacts facts;

	read_commit(record, &facts);
	if (facts.database == takeover.state->ctx->slot->data.database && !is_confirmed())
		send_commit_record(&facts);

	/* the coordinator itself took part: to the decoder this is a plain commit */
	if (TransactionIdIsValid(facts.xid))
	{
		record->xl_info = (record->xl_info & XLR_INFO_MASK) | XLOG_XACT_COMMIT;
		process_commit(record, &facts);
	}
}

/*
 * A PREPARE is sent even if its position is confirmed: after a restart of the
 * client it is what tells who took part in a transaction whose commit record
 * comes again.
 */
static void
process_prepare(XLogRecord *record)
{
	PrepareFacts facts;
	PreparedTransaction *entry;

	read_prepare(record, &facts);
	decode(record);
	if (facts.dtx == 0 || facts.database != takeover.state->ctx->slot->data.database)
		return;
	entry = hash_search(takeover.prepared, &record->xl_xid, HASH_ENTER, NULL);
	entry->dtx = facts.dtx;
	send_dtx("cbrepl.prepare", facts.dtx);
}

/*
 * A confirmed part is not sent again, but its PREPARE was: the client must
 * learn that nothing follows.
 */
static void
process_commit_prepared(XLogRecord *record)
{
	CommitFacts facts;

	read_commit(record, &facts);
	if (is_confirmed() && facts.database == takeover.state->ctx->slot->data.database)
		send_dtx("cbrepl.settled", facts.part.dtx);
	process_commit(record, &facts);
	hash_search(takeover.prepared, &facts.xid, HASH_REMOVE, NULL);
}

/* The record of ROLLBACK PREPARED names the local transaction only. */
static void
process_abort(XLogRecord *record)
{
	AbortFacts	facts;
	PreparedTransaction *entry;

	read_abort(record, &facts);
	decode(record);
	drop_wal_messages(facts.xid, facts.nsubxids, facts.subxids);
	entry = hash_search(takeover.prepared, &facts.xid, HASH_FIND, NULL);
	if (entry != NULL)
	{
		send_dtx("cbrepl.rollback", entry->dtx);
		hash_search(takeover.prepared, &facts.xid, HASH_REMOVE, NULL);
	}
}

static void
process_transaction_record(XLogRecord *record)
{
	CommitFacts facts;

	switch (record->xl_info & ~XLR_INFO_MASK)
	{
		case XLOG_XACT_COMMIT:
		case XLOG_XACT_COMMIT_COMPACT:
			read_commit(record, &facts);
			process_commit(record, &facts);
			break;
		case XLOG_XACT_COMMIT_PREPARED:
			process_commit_prepared(record);
			break;
		case XLOG_XACT_DISTRIBUTED_COMMIT:
			process_distributed_commit(record);
			break;
		case XLOG_XACT_DISTRIBUTED_FORGET:

			/*
			 * Written after the commit, with the committed xid still in its
			 * header, which the decoder must not see again.
			 */
			break;
		case XLOG_XACT_PREPARE:
			process_prepare(record);
			break;
		case XLOG_XACT_ABORT:
		case XLOG_XACT_ABORT_PREPARED:
			process_abort(record);
			break;
		default:
			decode(record);
	}
}

/* A server that has crashed leaves no abort record for what ran then. */
static void
drop_old_transactions(TransactionId oldest_running)
{
	HASH_SEQ_STATUS scan;
	PreparedTransaction *entry;

	drop_old_wal_messages(oldest_running);
	hash_seq_init(&scan, takeover.prepared);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (TransactionIdPrecedes(entry->xid, oldest_running))
			hash_search(takeover.prepared, &entry->xid, HASH_REMOVE, NULL);
}

static void
process_record(XLogRecord *record)
{
	LogicalDecodingContext *ctx = takeover.state->ctx;
	uint8		info = record->xl_info & ~XLR_INFO_MASK;
	const char *message;
	Size		length;

	switch (record->xl_rmid)
	{
		case RM_XLOG_ID:
			if (info == XLOG_NEXTRELFILENODE)
			{
				ReorderBufferProcessXid(ctx->reorder, record->xl_xid, ctx->reader->ReadRecPtr);
				return;
			}
			if (info == XLOG_NOOP &&
				is_wal_message(record, ctx->slot->data.database, &message, &length))
				remember_wal_message(record->xl_xid, ctx->reader->EndRecPtr, message, length);
			decode(record);
			return;
		case RM_XACT_ID:
			process_transaction_record(record);
			return;
		case RM_STANDBY_ID:
			decode(record);
			if (info == XLOG_RUNNING_XACTS && record->xl_len >= MinSizeOfXactRunningXacts)
				drop_old_transactions(((xl_running_xacts *) XLogRecGetData(record))->oldestRunningXid);
			return;
		default:
			decode(record);
	}
}

static void
start_takeover(State *state)
{
	LogicalDecodingContext *ctx = state->ctx;

	memset(&takeover, 0, sizeof(takeover));
	takeover.state = state;
	takeover.server_read_page = ctx->reader->read_page;
	takeover.last_sent = GetCurrentTimestamp();
	ctx->reader->read_page = read_page;
	ctx->options.output_type = OUTPUT_PLUGIN_BINARY_OUTPUT;
	state->write = collect_message;
	state->silent = keep_alive;
	takeover.prepared = create_id_hash("cbrepl_source prepared transactions", sizeof(PreparedTransaction), ctx->context);
	messages_init(ctx->context);
}

void
take_over_walsender(State *state)
{
	LogicalDecodingContext *ctx = state->ctx;
	XLogRecPtr	start = ctx->slot->data.restart_lsn;
	MemoryContext record_context;

	start_takeover(state);
	record_context = AllocSetContextCreate(ctx->context, "cbrepl_source record",
										   ALLOCSET_DEFAULT_MINSIZE,
										   ALLOCSET_DEFAULT_INITSIZE,
										   ALLOCSET_DEFAULT_MAXSIZE);

	ereport(LOG,
			(errmsg("cbrepl_source streams slot \"%s\"", NameStr(ctx->slot->data.name)),
			 errdetail("Confirmed up to %X/%X, reading WAL from %X/%X.",
					   (uint32) (ctx->slot->data.confirmed_flush >> 32), (uint32) ctx->slot->data.confirmed_flush,
					   (uint32) (start >> 32), (uint32) start)));

	for (;;)
	{
		XLogRecord *record;
		char	   *error = NULL;

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(record_context);
		record = XLogReadRecord(ctx->reader, start, &error);
		start = InvalidXLogRecPtr;
		if (error != NULL)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read WAL for slot \"%s\": %s", NameStr(ctx->slot->data.name), error)));
		if (record == NULL)
			break;				/* the client has ended the copy */

		process_record(record);

		/* a transaction's end has left the transaction's own context */
		MemoryContextSwitchTo(record_context);
		MemoryContextReset(record_context);
		report_progress();
	}

	ctx->reader->read_page = read_no_page;
	MemoryContextSwitchTo(ctx->context);
}

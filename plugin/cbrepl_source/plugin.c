/*
 * plugin.c
 *		The callbacks of the output plugin: which messages a transaction
 *		becomes, and in which order.
 */
#include "cbrepl_source.h"

#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "replication/walsender.h"
#include "utils/guc.h"
#include "utils/memutils.h"

PG_MODULE_MAGIC;

extern void _PG_init(void);
extern void _PG_output_plugin_init(OutputPluginCallbacks *callbacks);

StringInfo
message_start(State *state)
{
	OutputPluginPrepareWrite(state->ctx, true);
	return state->ctx->out;
}

void
message_end(State *state)
{
	state->write(state);
}

static void
write_now(State *state)
{
	OutputPluginWrite(state->ctx, true);
}

static void
keep_silent(State *state)
{
}

/* Sends Begin, and which part of which distributed transaction this is. */
void
block_start(State *state)
{
	if (state->block.begun)
		return;
	state->block.begun = true;

	write_begin(message_start(state), &state->block);
	message_end(state);

	if (state->part.kind != PART_LOCAL)
	{
		StringInfoData body;

		initStringInfo(&body);
		pq_sendbyte(&body, CBREPL_BODY_VERSION);
		pq_sendbyte(&body, state->part.kind);
		pq_sendint64(&body, state->part.dtx);
		write_message(message_start(state), true, state->block.commit_lsn,
					  "cbrepl.part", body.data, body.len);
		message_end(state);
		pfree(body.data);
	}
}

void
block_finish(State *state)
{
	if (!state->block.begun)
		return;
	write_commit(message_start(state), &state->block);
	message_end(state);
}

/*
 * Transactions that change nothing that is published are not sent at all, so
 * Begin waits for the first message of the transaction.
 */
static void
begin_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	State	   *state = ctx->output_plugin_private;

	state->block.xid = txn->xid;
	state->block.commit_lsn = txn->final_lsn;
	state->block.end_lsn = txn->end_lsn;
	state->block.commit_time = txn_commit_time(txn);
	state->block.begun = false;
	state->block.unsent = false;
#ifdef CBREPL_GREENPLUM
	apply_rewrites(txn);
#endif
}

static void
commit_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr commit_lsn)
{
	State	   *state = ctx->output_plugin_private;

	send_wal_messages(state, InvalidXLogRecPtr);
	block_finish(state);
	MemoryContextReset(state->row_context);
}

static void
send_one_schema(State *state, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	int			i;

	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!attribute_is_sent(att) || att->atttypid < FirstGenbkiObjectId)
			continue;
		write_type(message_start(state), att->atttypid);
		message_end(state);
	}
	write_relation(message_start(state), rel);
	message_end(state);
}

/* Like pgoutput, a partition that is published as its root announces both. */
void
send_schema(State *state, Relation rel, RelationEntry *entry)
{
	if (entry->schema_sent)
		return;
	if (entry->publish_as != entry->relid)
	{
		Relation	root = RelationIdGetRelation(entry->publish_as);

		if (!RelationIsValid(root))
			elog(ERROR, "could not open relation with OID %u", entry->publish_as);
		send_one_schema(state, root);
		RelationClose(root);
	}
	send_one_schema(state, rel);
	entry->schema_sent = true;
}

static void
change_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
		  Relation rel, ReorderBufferChange *change)
{
	State	   *state = ctx->output_plugin_private;
	HeapTuple	oldtuple = NULL;
	HeapTuple	newtuple = NULL;
	MemoryContext caller;
	RelationEntry *entry;
	char		action;

	if (state->next_message < state->nmessages)
		send_wal_messages(state, change->lsn);

	entry = relation_entry(state, rel);
	if (!entry->published)
	{
		state->silent(state);
		return;
	}

	if (change->data.tp.oldtuple != NULL)
		oldtuple = &change->data.tp.oldtuple->tuple;
	if (change->data.tp.newtuple != NULL)
		newtuple = &change->data.tp.newtuple->tuple;
	switch (change->action)
	{
		case REORDER_BUFFER_CHANGE_INSERT:
			action = 'I';
			break;
		case REORDER_BUFFER_CHANGE_UPDATE:
			action = 'U';
			break;
		case REORDER_BUFFER_CHANGE_DELETE:
			action = 'D';
			break;
		default:
			elog(ERROR, "unexpected change action %d", (int) change->action);
			return;
	}
	if (action == 'D' && oldtuple == NULL)
	{
		/* the table has no replica identity */
#ifdef CBREPL_GREENPLUM
		send_unsent_delete(state, entry->publish_as);
#endif
		return;
	}
	if (action != 'D' && newtuple == NULL)
		elog(ERROR, "change without a new row for table \"%s\"", RelationGetRelationName(rel));

	caller = MemoryContextSwitchTo(state->row_context);
	block_start(state);
	send_schema(state, rel, entry);
	write_row_change(message_start(state), action, entry, RelationGetDescr(rel),
					 action == 'I' ? NULL : oldtuple, action == 'D' ? NULL : newtuple);
	message_end(state);
	MemoryContextSwitchTo(caller);
	MemoryContextReset(state->row_context);
}

#ifdef CBREPL_GREENPLUM

static void
send_wal_message(State *state, const WalMessage *message)
{
	const char *end;

	switch (message->kind)
	{
		case WAL_MESSAGE_TRUNCATE:
			send_truncate(state, message);
			return;
		case WAL_MESSAGE_UNSENT:
			send_unsent(state, message);
			return;
		case WAL_MESSAGE_STATEMENT:
			{
				StringInfoData body;

				initStringInfo(&body);
				pq_sendbyte(&body, CBREPL_BODY_VERSION);
				pq_sendtext(&body, message->data, (int) message->len);
				block_start(state);
				write_message(message_start(state), true, message->lsn,
							  "cbrepl.statement", body.data, body.len);
				message_end(state);
				return;
			}
		case WAL_MESSAGE_PLAIN:
			end = memchr(message->data, '\0', message->len);
			if (end == NULL)
				break;
			block_start(state);
			end++;
			write_message(message_start(state), true, message->lsn, message->data,
						  end, message->len - (end - message->data));
			message_end(state);
			return;
	}
	elog(ERROR, "message of unknown kind %d ends at %X/%X", (int) message->kind,
		 (uint32) (message->lsn >> 32), (uint32) message->lsn);
}

/* Sends this transaction's messages that stand in front of this position; all of them if it is invalid. */
void
send_wal_messages(State *state, XLogRecPtr before)
{
	while (state->next_message < state->nmessages &&
		   (XLogRecPtrIsInvalid(before) || state->messages[state->next_message]->lsn <= before))
	{
		MemoryContext caller = MemoryContextSwitchTo(state->row_context);

		send_wal_message(state, state->messages[state->next_message++]);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(state->row_context);
	}
}

#else

void
send_wal_messages(State *state, XLogRecPtr before)
{
}

static void
truncate_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
			int nrelations, Relation relations[], ReorderBufferChange *change)
{
	State	   *state = ctx->output_plugin_private;
	MemoryContext caller = MemoryContextSwitchTo(state->row_context);
	Oid		   *relids = palloc(nrelations * sizeof(Oid));
	int			nrelids = 0;
	int			i;

	for (i = 0; i < nrelations; i++)
	{
		RelationEntry *entry = relation_entry(state, relations[i]);

		/* of a tree that is published as its root only the root is named */
		if (!entry->published || entry->publish_as != entry->relid)
			continue;
		relids[nrelids++] = entry->relid;
		block_start(state);
		send_schema(state, relations[i], entry);
	}
	if (nrelids > 0)
	{
		write_truncate(message_start(state), nrelids, relids,
					   (change->data.truncate.cascade ? 1 : 0) |
					   (change->data.truncate.restart_seqs ? 2 : 0));
		message_end(state);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextReset(state->row_context);
}

static void
message_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn,
		   bool transactional, const char *prefix, Size size, const char *body)
{
	State	   *state = ctx->output_plugin_private;

	if (transactional)
		block_start(state);
	write_message(message_start(state), transactional, lsn, prefix, body, size);
	message_end(state);
}

#endif

/*
 * Values are printed as under these settings, whatever the role or the
 * database says, so that they mean the same on any server.
 */
static void
pin_settings(void)
{
	static const char *const settings[][2] = {
		{"datestyle", "ISO"},
		{"intervalstyle", "postgres"},
		{"extra_float_digits", "3"},
		{"bytea_output", "hex"},
		{"search_path", "pg_catalog"},
	};
	int			i;

	for (i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_USERSET, PGC_S_OVERRIDE);
}

static void
startup_cb(LogicalDecodingContext *ctx, OutputPluginOptions *options, bool is_init)
{
	State	   *state = palloc0(sizeof(State));

	options->output_type = OUTPUT_PLUGIN_BINARY_OUTPUT;
	ctx->output_plugin_private = state;
	state->ctx = ctx;
	state->write = write_now;
	state->silent = keep_silent;
	state->row_context = AllocSetContextCreate(ctx->context,
											   "cbrepl_source row",
											   ALLOCSET_DEFAULT_MINSIZE,
											   ALLOCSET_DEFAULT_INITSIZE,
											   ALLOCSET_DEFAULT_MAXSIZE);

#ifdef CBREPL_GREENPLUM
	if (!library_is_preloaded)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cbrepl_source is not in shared_preload_libraries of this node"),
				 errhint("Without it TRUNCATE would be lost. Add it on every node and restart the cluster.")));
#endif

	if (is_init)
		return;
	parse_options(ctx->output_plugin_options, &state->options);
	relations_init();
	if (!am_walsender)
		return;
	pin_settings();
#ifdef CBREPL_GREENPLUM
	take_over_walsender(state);
#endif
}

void
_PG_output_plugin_init(OutputPluginCallbacks *callbacks)
{
	callbacks->startup_cb = startup_cb;
	callbacks->begin_cb = begin_cb;
	callbacks->change_cb = change_cb;
	callbacks->commit_cb = commit_cb;
#ifndef CBREPL_GREENPLUM
	callbacks->truncate_cb = truncate_cb;
	callbacks->message_cb = message_cb;
#endif
}

void
_PG_init(void)
{
#ifdef CBREPL_GREENPLUM
	if (process_shared_preload_libraries_in_progress)
		install_hook();
#endif
}

/*
 * message.c
 *		Messages that a backend leaves in WAL for the stream, on a server that
 *		has no logical messages.
 *
 * A message is an XLOG_NOOP record with a body: recovery and the stock decoder
 * ignore it, and it carries its writer's (sub)transaction id.  The takeover
 * meets it in WAL order, before it is known whether the transaction commits,
 * and keeps it here until then.
 *
 * What is kept is bounded where it is written: MAX_BYTES_PER_TRANSACTION for
 * each open transaction, prepared ones included.
 */
#include "cbrepl_source.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#define MAX_BYTES_PER_TRANSACTION (16 * 1024 * 1024)

typedef struct MessageHeader
{
	char		magic[8];
	Oid			database;
	char		kind;
} MessageHeader;

#define MESSAGE_MAGIC "cbrepl01"
#define MESSAGE_HEADER_SIZE (offsetof(MessageHeader, kind) + 1)

typedef struct PendingMessages
{
	TransactionId xid;			/* hash key: a transaction or subtransaction */
	WalMessage **messages;
	int			count;
	int			room;
} PendingMessages;

static MemoryContext pending_context;
static HTAB *pending;

/* Writes a message of the current (sub)transaction. */
void
log_wal_message(char kind, const void *data, Size len)
{
	static TransactionId counted_xid = InvalidTransactionId;
	static Size counted_bytes = 0;
	MessageHeader header;
	XLogRecData rdata[2];

	if (!XLogLogicalInfoActive())
		return;

	(void) GetCurrentTransactionId();
	if (counted_xid != GetTopTransactionId())
	{
		counted_xid = GetTopTransactionId();
		counted_bytes = 0;
	}
	if (len > MAX_BYTES_PER_TRANSACTION - counted_bytes)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("this transaction's messages for replication exceed %d bytes", MAX_BYTES_PER_TRANSACTION),
				 errhint("Split the transaction.")));
	counted_bytes += len + sizeof(WalMessage);

	memcpy(header.magic, MESSAGE_MAGIC, sizeof(header.magic));
	header.database = MyDatabaseId;
	header.kind = kind;

	rdata[0].data = (char *) &header;
	rdata[0].len = MESSAGE_HEADER_SIZE;
	rdata[0].buffer = InvalidBuffer;
	rdata[0].next = &rdata[1];
	rdata[1].data = (char *) data;
	rdata[1].len = (uint32) len;
	rdata[1].buffer = InvalidBuffer;
	rdata[1].next = NULL;
	(void) XLogInsert(RM_XLOG_ID, XLOG_NOOP, rdata);
}

/* Reports whether the record is a message of this database; *data begins with the kind. */
bool
is_wal_message(const XLogRecord *record, Oid database, const char **data, Size *len)
{
	MessageHeader header;

	if (record->xl_len < MESSAGE_HEADER_SIZE || !TransactionIdIsValid(record->xl_xid))
		return false;
	memcpy(&header, XLogRecGetData(record), MESSAGE_HEADER_SIZE);
	if (memcmp(header.magic, MESSAGE_MAGIC, sizeof(header.magic)) != 0 ||
		header.database != database)
		return false;
	*data = XLogRecGetData(record) + offsetof(MessageHeader, kind);
	*len = record->xl_len - offsetof(MessageHeader, kind);
	return true;
}

void
messages_init(MemoryContext parent)
{
	pending_context = AllocSetContextCreate(parent, "cbrepl_source messages",
											ALLOCSET_DEFAULT_MINSIZE,
											ALLOCSET_DEFAULT_INITSIZE,
											ALLOCSET_DEFAULT_MAXSIZE);
	pending = create_id_hash("cbrepl_source messages", sizeof(PendingMessages), pending_context);
}

/* Keeps a message, whose data begins with its kind, until its transaction ends. */
void
remember_wal_message(TransactionId xid, XLogRecPtr lsn, const char *data, Size len)
{
	MemoryContext caller = MemoryContextSwitchTo(pending_context);
	PendingMessages *entry;
	WalMessage *message;
	char	   *copy;
	bool		found;

	entry = hash_search(pending, &xid, HASH_ENTER, &found);
	if (!found)
	{
		entry->room = 4;
		entry->count = 0;
		entry->messages = palloc(entry->room * sizeof(WalMessage *));
	}
	if (entry->count == entry->room)
	{
		entry->room *= 2;
		entry->messages = repalloc(entry->messages, entry->room * sizeof(WalMessage *));
	}
	message = palloc(sizeof(WalMessage) + len);
	copy = (char *) (message + 1);
	memcpy(copy, data + 1, len - 1);
	message->lsn = lsn;
	message->kind = data[0];
	message->data = copy;
	message->len = len - 1;
	entry->messages[entry->count++] = message;
	MemoryContextSwitchTo(caller);
}

static int
compare_positions(const void *a, const void *b)
{
	const WalMessage *left = *(WalMessage *const *) a;
	const WalMessage *right = *(WalMessage *const *) b;

	return left->lsn < right->lsn ? -1 : left->lsn > right->lsn;
}

/*
 * Hands out the messages of a committed transaction and of its committed
 * subtransactions, in WAL order.  The caller frees them with
 * drop_wal_messages.
 */
WalMessage **
take_wal_messages(TransactionId xid, int nsubxids, const TransactionId *subxids, int *count)
{
	WalMessage **all = NULL;
	int			i;

	*count = 0;
	if (hash_get_num_entries(pending) == 0)
		return NULL;
	for (i = -1; i < nsubxids; i++)
	{
		PendingMessages *entry = hash_search(pending, i < 0 ? &xid : &subxids[i], HASH_FIND, NULL);
		Size		size;

		if (entry == NULL)
			continue;
		size = (*count + entry->count) * sizeof(WalMessage *);
		all = all == NULL ? palloc(size) : repalloc(all, size);
		memcpy(all + *count, entry->messages, entry->count * sizeof(WalMessage *));
		*count += entry->count;
	}
	if (*count > 1)
		qsort(all, *count, sizeof(WalMessage *), compare_positions);
	return all;
}

static void
drop_entry(PendingMessages *entry)
{
	int			i;

	for (i = 0; i < entry->count; i++)
		pfree(entry->messages[i]);
	pfree(entry->messages);
	hash_search(pending, &entry->xid, HASH_REMOVE, NULL);
}

void
drop_wal_messages(TransactionId xid, int nsubxids, const TransactionId *subxids)
{
	int			i;

	if (hash_get_num_entries(pending) == 0)
		return;
	for (i = -1; i < nsubxids; i++)
	{
		PendingMessages *entry = hash_search(pending, i < 0 ? &xid : &subxids[i], HASH_FIND, NULL);

		if (entry != NULL)
			drop_entry(entry);
	}
}

/* Drops messages of transactions that a crash of the server has ended without a record. */
void
drop_old_wal_messages(TransactionId oldest_running)
{
	HASH_SEQ_STATUS scan;
	PendingMessages *entry;

	hash_seq_init(&scan, pending);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (TransactionIdPrecedes(entry->xid, oldest_running))
			drop_entry(entry);
}

/*
 * cbrepl_source.h
 *		What the files of the output plugin share.
 *
 * The stream is pgoutput's, protocol version 1, so that a reader of pgoutput
 * reads it.  What pgoutput cannot say travels as logical messages whose
 * prefixes begin with "cbrepl.".
 */
#ifndef CBREPL_SOURCE_H
#define CBREPL_SOURCE_H

#include "compat.h"

#include "fmgr.h"
#include "replication/logical.h"
#include "replication/output_plugin.h"

/* The daemon compares this with its own; change it with the wire or the SQL. */
#define CBREPL_SOURCE_VERSION "1.0"

/* Every body of a message with one of our prefixes begins with this byte. */
#define CBREPL_BODY_VERSION 1

/*
 * What this node contributes to a distributed transaction.  A dtx id is
 * "distributed timestamp << 32 | gxid": Greenplum numbers gxids again from 1
 * when the cluster starts, the timestamp tells the starts apart.
 */
typedef enum PartKind
{
	PART_LOCAL = 0,				/* no distributed transaction */
	PART_TWO_PHASE = 'T',
	PART_ONE_PHASE = 'O'
} PartKind;

typedef struct Part
{
	PartKind	kind;
	uint64		dtx;
} Part;

/* The options of START_REPLICATION (options.c). */
typedef struct Options
{
	struct TableName *tables;	/* sorted */
	int			ntables;
	List	   *relids;
	bool		via_root;
} Options;

/* The transaction whose block, Begin to Commit, is being sent. */
typedef struct TransactionBlock
{
	TransactionId xid;
	XLogRecPtr	commit_lsn;		/* start of the commit record */
	XLogRecPtr	end_lsn;		/* its end */
	TimestampTz commit_time;
	bool		begun;			/* Begin was sent */
	bool		unsent;			/* so was word of rows that the stream does not carry */
} TransactionBlock;

/* A message that a backend left in WAL for its own transaction (message.c). */
typedef struct WalMessage
{
	XLogRecPtr	lsn;			/* end of its record */
	char		kind;
	Size		len;
	const char *data;			/* what follows the kind */
} WalMessage;

typedef struct State
{
	LogicalDecodingContext *ctx;
	MemoryContext row_context;	/* reset after every row */
	Options		options;
	TransactionBlock		block;

	/*
	 * Set by the takeover before it hands a commit record to the decoder;
	 * zero on PostgreSQL 15, where transactions have no part and messages
	 * come through the server's own callback.
	 */
	Part		part;
	WalMessage **messages;		/* of this transaction, in WAL order */
	int			nmessages;
	int			next_message;	/* the first one not sent yet */

	/* How a message leaves: OutputPluginWrite, or the takeover's own. */
	void		(*write) (struct State *state);
	/* Called for changes that are not sent, so that long silences are served. */
	void		(*silent) (struct State *state);
} State;

/* plugin.c */
extern StringInfo message_start(State *state);
extern void message_end(State *state);
extern void block_start(State *state);
extern void block_finish(State *state);
extern void send_wal_messages(State *state, XLogRecPtr before);

struct RelationEntry;
extern void send_schema(State *state, Relation rel, struct RelationEntry *entry);

/* options.c */
extern void parse_options(List *elements, Options *options);
extern bool table_is_listed(const Options *options, Oid relid);
extern bool name_is_listed(const Options *options, Oid relid, const char *schema, const char *name);

/* relation.c */
typedef struct Column
{
	int			source;			/* index in the tuple of the changed relation */
	FmgrInfo	output;
} Column;

typedef struct RelationEntry
{
	Oid			relid;			/* hash key: the relation that changed */
	bool		valid;
	bool		published;
	bool		schema_sent;
	Oid			publish_as;		/* relid, or the partition root */
	char		replica_identity;	/* of publish_as */
	List	   *ancestors;
	int			ncolumns;		/* that are sent, in the order of publish_as */
	Column	   *columns;
	Datum	   *values;			/* room for one deformed tuple */
	bool	   *nulls;
	MemoryContext context;
} RelationEntry;

extern void relations_init(void);
extern RelationEntry *relation_entry(const State *state, Relation rel);

/* wire.c */
extern void write_begin(StringInfo out, const TransactionBlock *block);
extern void write_commit(StringInfo out, const TransactionBlock *block);
extern void write_relation(StringInfo out, Relation rel);
extern void write_type(StringInfo out, Oid type);
extern void write_row_change(StringInfo out, char action, RelationEntry *entry,
				 TupleDesc desc, HeapTuple oldtuple, HeapTuple newtuple);
extern void write_truncate(StringInfo out, int nrelids, const Oid *relids, uint8 flags);
extern void write_message(StringInfo out, bool transactional, XLogRecPtr lsn,
			  const char *prefix, const char *body, Size len);
extern bool attribute_is_sent(Form_pg_attribute att);

#ifdef CBREPL_GREENPLUM

/* The kinds of WalMessage. */
#define WAL_MESSAGE_TRUNCATE 'T'	/* uint8 flags, then table OIDs */
#define WAL_MESSAGE_STATEMENT 'S'	/* text of a statement that changes a table's shape */
#define WAL_MESSAGE_UNSENT 'U'	/* kind of statement, then tables: uint32 OID, schema, name */
#define WAL_MESSAGE_PLAIN 'M'	/* prefix, NUL, content */

/* hook.c */
extern bool library_is_preloaded;
extern void install_hook(void);

/* message.c */
extern void log_wal_message(char kind, const void *data, Size len);
extern void messages_init(MemoryContext parent);
extern void remember_wal_message(TransactionId xid, XLogRecPtr lsn, const char *data, Size len);
extern WalMessage **take_wal_messages(TransactionId xid, int nsubxids, const TransactionId *subxids, int *count);
extern void drop_wal_messages(TransactionId xid, int nsubxids, const TransactionId *subxids);
extern void drop_old_wal_messages(TransactionId oldest_running);

/* record.c */
typedef struct CommitFacts
{
	TransactionId xid;
	Oid			database;
	TimestampTz time;
	int			nsubxids;
	const TransactionId *subxids;
	Part		part;
} CommitFacts;

typedef struct PrepareFacts
{
	Oid			database;
	uint64		dtx;			/* 0: not a distributed transaction's */
} PrepareFacts;

typedef struct AbortFacts
{
	TransactionId xid;
	int			nsubxids;
	const TransactionId *subxids;
} AbortFacts;

extern void read_commit(const XLogRecord *record, CommitFacts *facts);
extern void read_prepare(const XLogRecord *record, PrepareFacts *facts);
extern void read_abort(const XLogRecord *record, AbortFacts *facts);
extern bool is_wal_message(const XLogRecord *record, Oid database, const char **data, Size *len);

/* rewrite.c */
struct ReorderBufferTXN;
extern void apply_rewrites(struct ReorderBufferTXN *txn);

/* truncate.c */
extern void send_truncate(State *state, const WalMessage *message);

/* unsent.c */
typedef struct Unsent Unsent;
extern Unsent *unsent_before(Node *statement);
extern void unsent_after(Unsent *unsent);
extern void send_unsent(State *state, const WalMessage *message);
extern void send_unsent_delete(State *state, Oid relid);

/* takeover.c */
extern void take_over_walsender(State *state);

#endif

#endif

/*
 * unsent.c
 *		Changes of rows that the stream does not carry.
 *
 * DELETE in a table without replica identity does not say which row it was.
 * Other statements change rows of a table without changing a row:
 * DROP TABLE and the commands that drop, exchange or split a partition take
 * tables with their rows out of a tree or put them into it; ADD COLUMN and ALTER
 * COLUMN ... TYPE fill rows by a rewrite.  None of that is in the stream.  The
 * coordinator leaves a message with the tables whose rows such a statement has
 * changed, and the stream tells its reader if one of them is published.
 *
 * What a partition command did is found by comparing the tree before and
 * after, not by what it says: it names partitions in a dozen ways.
 */
#include "cbrepl_source.h"

#include "catalog/heap.h"
#include "catalog/namespace.h"
#include "catalog/pg_inherits_fn.h"
#include "cdb/cdbpartition.h"
#include "libpq/pqformat.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "optimizer/clauses.h"
#include "rewrite/rewriteHandler.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

typedef struct Table
{
	Oid			relid;
	Oid			parent;			/* of a partition */
	bool		heap;			/* its rows are in the stream */
	char	   *schema;
	char	   *name;
} Table;

struct Unsent
{
	const char *kind;			/* of statement, for people */
	List	   *before;			/* Tables that it names, with their partitions */
	Oid			altered;		/* the table of ALTER TABLE */
	List	   *commands;		/* those of ALTER TABLE */
};

static Table *
describe_table(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class class;
	Table	   *table;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	class = (Form_pg_class) GETSTRUCT(tuple);
	table = palloc0(sizeof(Table));
	table->relid = relid;
	table->parent = partition_parent(relid);
	table->heap = class->relkind == RELKIND_RELATION && class->relstorage == RELSTORAGE_HEAP &&
		class->relpersistence == RELPERSISTENCE_PERMANENT;
	table->schema = get_namespace_name(class->relnamespace);
	table->name = pstrdup(NameStr(class->relname));
	ReleaseSysCache(tuple);
	return table;
}

/* A table and, of a partitioned one, all partitions. */
static List *
describe_tree(List *tables, Oid relid)
{
	List	   *relids = rel_is_partitioned(relid) ? find_all_inheritors(relid, NoLock, NULL) : list_make1_oid(relid);
	ListCell   *cell;

	foreach(cell, relids)
	{
		Table	   *table = describe_table(lfirst_oid(cell));

		if (table != NULL)
			tables = lappend(tables, table);
	}
	return tables;
}

static Table *
find_table(List *tables, Oid relid)
{
	ListCell   *cell;

	foreach(cell, tables)
	{
		Table	   *table = lfirst(cell);

		if (table->relid == relid)
			return table;
	}
	return NULL;
}

/* Looks through ALTER PARTITION ... for the command that it is about. */
static AlterTableCmd *
innermost_command(AlterTableCmd *command)
{
	while (command->subtype == AT_PartAlter)
		command = (AlterTableCmd *) ((AlterPartitionCmd *) command->def)->arg1;
	return command;
}

static const char *
partition_command(List *commands)
{
	ListCell   *cell;

	foreach(cell, commands)
	{
		switch (innermost_command(lfirst(cell))->subtype)
		{
			case AT_PartExchange:
				return "ALTER TABLE ... EXCHANGE PARTITION";
			case AT_PartSplit:
				return "ALTER TABLE ... SPLIT PARTITION";
			case AT_PartDrop:
				return "ALTER TABLE ... DROP PARTITION";
			default:
				break;
		}
	}
	return NULL;
}

/* Reports whether an added column may get other values elsewhere than here. */
static bool
default_varies(Oid relid, const char *column)
{
	Relation	rel = RelationIdGetRelation(relid);
	AttrNumber	number = get_attnum(relid, column);
	bool		varies = false;

	if (RelationIsValid(rel))
	{
		if (number != InvalidAttrNumber)
			varies = contain_mutable_functions(build_column_default(rel, number));
		RelationClose(rel);
	}
	return varies;
}

/*
 * The command by which rows got values that the same command on another server
 * need not give them, or NULL.
 */
static const char *
rewriting_command(Oid relid, List *commands)
{
	ListCell   *cell;

	foreach(cell, commands)
	{
		AlterTableCmd *command = lfirst(cell);

		if (command->subtype == AT_AlterColumnType && ((ColumnDef *) command->def)->raw_default != NULL)
			return "ALTER TABLE ... ALTER COLUMN TYPE ... USING";
		if ((command->subtype == AT_AddColumn || command->subtype == AT_AddColumnRecurse) &&
			default_varies(relid, ((ColumnDef *) command->def)->colname))
			return "ALTER TABLE ... ADD COLUMN with a default that is not immutable";
	}
	return NULL;
}

/* Looks at what a statement is about to change; NULL if it can change no rows unsent. */
Unsent *
unsent_before(Node *statement)
{
	Unsent	   *unsent = palloc0(sizeof(Unsent));
	ListCell   *cell;

	if (IsA(statement, AlterTableStmt) && ((AlterTableStmt *) statement)->relkind == OBJECT_TABLE)
	{
		unsent->commands = ((AlterTableStmt *) statement)->cmds;
		unsent->altered = RangeVarGetRelid(((AlterTableStmt *) statement)->relation, NoLock, true);
		if (OidIsValid(unsent->altered))
			unsent->before = describe_tree(NIL, unsent->altered);
	}
	else if (IsA(statement, DropStmt) && ((DropStmt *) statement)->removeType == OBJECT_TABLE)
	{
		unsent->kind = "DROP TABLE";
		foreach(cell, ((DropStmt *) statement)->objects)
		{
			Oid			relid = RangeVarGetRelid(makeRangeVarFromNameList(lfirst(cell)), NoLock, true);

			if (OidIsValid(relid))
				unsent->before = describe_tree(unsent->before, relid);
		}
	}
	return unsent->before != NIL ? unsent : NULL;
}

/*
 * The tables whose rows were put into the tree or taken out of it.  A table
 * that holds no streamed rows itself changes nothing.
 */
static List *
moved_tables(Unsent *unsent)
{
	List	   *after = OidIsValid(unsent->altered) ? describe_tree(NIL, unsent->altered) : NIL;
	List	   *gone = NIL;
	List	   *come = NIL;
	ListCell   *cell;

	foreach(cell, unsent->before)
	{
		Table	   *table = lfirst(cell);

		if (table->heap && find_table(after, table->relid) == NULL)
			gone = lappend(gone, table);
	}
	/* nothing comes with rows but in exchange for what has gone */
	foreach(cell, gone == NIL ? NIL : after)
	{
		Table	   *table = lfirst(cell);

		if (table->heap && find_table(unsent->before, table->relid) == NULL)
			come = lappend(come, table);
	}
	return list_concat(gone, come);
}

/* Adds the partitioned tables above a table, which may be what is published. */
static void
add_with_ancestors(StringInfo body, Unsent *unsent, Table *table)
{
	while (table != NULL)
	{
		pq_sendint(body, table->relid, 4);
		pq_sendstring(body, table->schema);
		pq_sendstring(body, table->name);
		table = find_table(unsent->before, table->parent);
	}
}

/* Leaves the message, if the statement has changed rows unsent. */
void
unsent_after(Unsent *unsent)
{
	const char *kind = unsent->kind;
	List	   *changed;
	StringInfoData body;
	ListCell   *cell;

	if (kind == NULL)
		kind = partition_command(unsent->commands);
	if (kind != NULL)
		changed = moved_tables(unsent);
	else
	{
		kind = rewriting_command(unsent->altered, unsent->commands);
		changed = kind != NULL ? unsent->before : NIL;
	}
	if (changed == NIL)
		return;

	initStringInfo(&body);
	pq_sendstring(&body, kind);
	foreach(cell, changed)
		add_with_ancestors(&body, unsent, lfirst(cell));
	log_wal_message(WAL_MESSAGE_UNSENT, body.data, body.len);
	pfree(body.data);
}

static const char *
next_string(StringInfo in)
{
	const char *text = in->data + in->cursor;
	const char *end = memchr(text, '\0', in->len - in->cursor);

	if (end == NULL)
		elog(ERROR, "message on changed tables ends within a name");
	in->cursor += end + 1 - text;
	return text;
}

/* One such message of a transaction is enough: its reader stops. */
static void
write_unsent(State *state, XLogRecPtr lsn, const char *kind, const char *schema, const char *name)
{
	StringInfoData body;

	if (state->block.unsent)
		return;
	state->block.unsent = true;
	initStringInfo(&body);
	pq_sendbyte(&body, CBREPL_BODY_VERSION);
	appendBinaryStringInfo(&body, kind, strlen(kind) + 1);
	appendBinaryStringInfo(&body, schema, strlen(schema) + 1);
	appendBinaryStringInfo(&body, name, strlen(name) + 1);
	block_start(state);
	write_message(message_start(state), true, lsn, "cbrepl.unsent", body.data, body.len);
	message_end(state);
	pfree(body.data);
}

/* The WAL of a DELETE does not say which row, if the table has no replica identity. */
void
send_unsent_delete(State *state, Oid relid)
{
	char	   *name;

	if (state->block.unsent)
		return;
	name = get_rel_name(relid);
	if (name == NULL)
		elog(ERROR, "could not find relation with OID %u", relid);
	write_unsent(state, state->block.commit_lsn, "DELETE without a replica identity",
				 get_namespace_name(get_rel_namespace(relid)), name);
}

/* Sends a message that names the first published table of those changed, if there is one. */
void
send_unsent(State *state, const WalMessage *message)
{
	StringInfoData in;
	const char *kind;

	in.data = (char *) message->data;
	in.len = in.maxlen = (int) message->len;
	in.cursor = 0;
	kind = next_string(&in);
	while (in.cursor < in.len)
	{
		Oid			relid = pq_getmsgint(&in, 4);
		const char *schema = next_string(&in);
		const char *name = next_string(&in);

		if (name_is_listed(&state->options, relid, schema, name))
		{
			write_unsent(state, message->lsn, kind, schema, name);
			return;
		}
	}
}

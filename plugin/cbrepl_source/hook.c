/*
 * hook.c
 *		Statements that the WAL of Greenplum 6 does not describe.
 *
 * TRUNCATE gives a table a new file, which no decoder sees.  The hook runs on
 * the node that truncates, after the statement, and leaves a message with the
 * tables.  On the coordinator it leaves the text of statements that change a
 * table's shape.  Both stand in the writer's own (sub)transaction: when that
 * is rolled back, nothing is sent.
 */
#include "cbrepl_source.h"

#include "access/xact.h"
#include "catalog/heap.h"
#include "catalog/namespace.h"
#include "catalog/pg_inherits_fn.h"
#include "cdb/cdbvars.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "parser/parse_clause.h"
#include "tcop/utility.h"
#include "utils/syscache.h"

/* A longer statement is cut: its text is for people. */
#define MAX_STATEMENT_BYTES 16384

#define TRUNCATE_CASCADE 1
#define TRUNCATE_RESTART_SEQS 2

bool		library_is_preloaded = false;
static ProcessUtility_hook_type next_hook = NULL;

static bool
is_permanent_table(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = ((Form_pg_class) GETSTRUCT(tuple))->relpersistence == RELPERSISTENCE_PERMANENT;
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Leaves the list of tables that this TRUNCATE has emptied, found as
 * ExecuteTruncate finds them.  Their exclusive locks are held until the
 * transaction ends, so that the lists are the ones that it has seen.
 */
static void
log_truncate(TruncateStmt *stmt)
{
	List	   *relids = NIL;
	StringInfoData body;
	ListCell   *cell;

	foreach(cell, stmt->relations)
	{
		RangeVar   *name = lfirst(cell);
		Oid			relid = RangeVarGetRelid(name, NoLock, false);

		relids = list_append_unique_oid(relids, relid);
		if (interpretInhOption(name->inhOpt))
			relids = list_concat_unique_oid(relids, find_all_inheritors(relid, NoLock, NULL));
	}
	if (stmt->behavior == DROP_CASCADE)
	{
		List	   *referencing;

		while ((referencing = heap_truncate_find_FKs(relids)) != NIL)
			relids = list_concat_unique_oid(relids, referencing);
	}

	initStringInfo(&body);
	appendStringInfoChar(&body, (stmt->behavior == DROP_CASCADE ? TRUNCATE_CASCADE : 0) |
						 (stmt->restart_seqs ? TRUNCATE_RESTART_SEQS : 0));
	foreach(cell, relids)
	{
		Oid			relid = lfirst_oid(cell);

		if (is_permanent_table(relid))
			appendBinaryStringInfo(&body, (char *) &relid, sizeof(relid));
	}
	if (body.len > 1)
		log_wal_message(WAL_MESSAGE_TRUNCATE, body.data, body.len);
	pfree(body.data);
}

static bool
changes_a_tables_shape(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateStmt:
		case T_CreateTableAsStmt:
		case T_AlterTableStmt:
			return true;
		case T_DropStmt:
			return ((DropStmt *) statement)->removeType == OBJECT_TABLE;
		case T_RenameStmt:
			return ((RenameStmt *) statement)->renameType == OBJECT_TABLE ||
				((RenameStmt *) statement)->renameType == OBJECT_COLUMN;
		case T_AlterObjectSchemaStmt:
			return ((AlterObjectSchemaStmt *) statement)->objectType == OBJECT_TABLE;
		default:
			return false;
	}
}

/* Reports whether the message must go to this node's WAL: only segments hold rows. */
static bool
truncates_here(Node *statement)
{
	return IsA(statement, TruncateStmt) && !IS_QUERY_DISPATCHER() &&
		(Gp_role == GP_ROLE_UTILITY || (Gp_role == GP_ROLE_EXECUTE && Gp_is_writer));
}

static void
process_utility(Node *statement, const char *text, ProcessUtilityContext context,
				ParamListInfo params, DestReceiver *dest, char *completion)
{
	bool		of_client = Gp_role == GP_ROLE_DISPATCH && context != PROCESS_UTILITY_SUBCOMMAND && text != NULL &&
	OidIsValid(MyDatabaseId) && IsTransactionState();
	Unsent	   *unsent = of_client && XLogLogicalInfoActive() ? unsent_before(statement) : NULL;

	if (next_hook != NULL)
		next_hook(statement, text, context, params, dest, completion);
	else
		standard_ProcessUtility(statement, text, context, params, dest, completion);

	if (!IsTransactionState() || !OidIsValid(MyDatabaseId))
		return;
	if (truncates_here(statement))
		log_truncate((TruncateStmt *) statement);
	else if (of_client && changes_a_tables_shape(statement))
		log_wal_message(WAL_MESSAGE_STATEMENT, text,
						pg_mbcliplen(text, (int) strnlen(text, MAX_STATEMENT_BYTES + 1), MAX_STATEMENT_BYTES));
	if (unsent != NULL)
		unsent_after(unsent);
}

void
install_hook(void)
{
	library_is_preloaded = true;
	next_hook = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}

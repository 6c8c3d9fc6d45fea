/*
 * relation.c
 *		What is known about a relation whose rows come by: whether it is
 *		published and as what, and how its columns are printed.
 *
 * An entry is made when the first row of a relation comes by, under the
 * historic snapshot of that row, and made again after any invalidation of the
 * relation, of one of its partition ancestors or of a schema.  The memory of
 * the cache is bounded by the number of tables that change.
 */
#include "cbrepl_source.h"

#include "catalog/catalog.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/* Both live as long as the process: callbacks cannot be unregistered. */
static MemoryContext relations_context = NULL;
static HTAB *relations = NULL;

static void
invalidate_relation(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS scan;
	RelationEntry *entry;

	if (relations == NULL)
		return;
	hash_seq_init(&scan, relations);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (relid == InvalidOid || entry->relid == relid ||
			list_member_oid(entry->ancestors, relid))
			entry->valid = false;
}

static void
invalidate_all(Datum arg, int cacheid, uint32 hashvalue)
{
	invalidate_relation(arg, InvalidOid);
}

void
relations_init(void)
{
	if (relations_context == NULL)
	{
		relations_context = AllocSetContextCreate(CacheMemoryContext,
												  "cbrepl_source relations",
												  ALLOCSET_DEFAULT_MINSIZE,
												  ALLOCSET_DEFAULT_INITSIZE,
												  ALLOCSET_DEFAULT_MAXSIZE);
		CacheRegisterRelcacheCallback(invalidate_relation, (Datum) 0);
		CacheRegisterSyscacheCallback(NAMESPACEOID, invalidate_all, (Datum) 0);
	}

	/* a stream of this session that ended with an error has left its cache */
	relations = NULL;
	MemoryContextResetAndDeleteChildren(relations_context);

	relations = create_id_hash("cbrepl_source relations", sizeof(RelationEntry), relations_context);
}

/*
 * The relation as which rel's rows are published: rel itself, with
 * publish_via_partition_root the topmost listed ancestor; InvalidOid if
 * neither rel nor an ancestor is listed.
 */
static Oid
published_as(const Options *options, Relation rel, List *ancestors)
{
	Oid			relid = RelationGetRelid(rel);
	bool		listed;
	Oid			topmost = InvalidOid;
	ListCell   *cell;

	if (relid < FirstNormalObjectId ||
		(rel->rd_rel->relkind != RELKIND_RELATION && !relation_has_partitions(rel)) ||
		rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT ||
		IsCatalogRelation(rel))
		return InvalidOid;

	listed = table_is_listed(options, relid);
	foreach(cell, ancestors)	/* the nearest comes first */
		if (table_is_listed(options, lfirst_oid(cell)))
			topmost = lfirst_oid(cell);

	if (options->via_root && OidIsValid(topmost))
		return topmost;
	if (!options->via_root && relation_has_partitions(rel))
		return InvalidOid;		/* its leaves speak for it */
	return listed || OidIsValid(topmost) ? relid : InvalidOid;
}

/* The index in desc of the column with this name; a leaf may have another order than its root. */
static int
find_column(TupleDesc desc, Form_pg_attribute wanted, Relation leaf, Relation root)
{
	int			i;

	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || strcmp(NameStr(att->attname), NameStr(wanted->attname)) != 0)
			continue;
		if (att->atttypid != wanted->atttypid || att->atttypmod != wanted->atttypmod)
			break;
		return i;
	}
	ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("column \"%s\" of \"%s\" has no counterpart of the same type in its partition \"%s\"",
					NameStr(wanted->attname), RelationGetRelationName(root), RelationGetRelationName(leaf)),
			 errhint("Publish the partitions themselves: set publish_via_partition_root to false.")));
	return -1;
}

static void
build_columns(RelationEntry *entry, Relation rel, Relation target)
{
	TupleDesc	desc = RelationGetDescr(rel);
	TupleDesc	sent = RelationGetDescr(target);
	int			i;

	entry->replica_identity = target->rd_rel->relreplident;
	entry->values = palloc(Max(desc->natts, 1) * sizeof(Datum));
	entry->nulls = palloc(Max(desc->natts, 1) * sizeof(bool));
	entry->columns = palloc0(Max(sent->natts, 1) * sizeof(Column));
	entry->ncolumns = 0;
	for (i = 0; i < sent->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(sent, i);
		Column	   *column;
		Oid			function;
		bool		is_varlena;

		if (!attribute_is_sent(att))
			continue;
		column = &entry->columns[entry->ncolumns++];
		column->source = rel == target ? i : find_column(desc, att, rel, target);
		getTypeOutputInfo(att->atttypid, &function, &is_varlena);
		fmgr_info_cxt(function, &column->output, entry->context);
	}
}

static void
build_entry(RelationEntry *entry, const Options *options, Relation rel)
{
	MemoryContext caller;
	List	   *ancestors = NIL;
	Oid			ancestor;

	if (entry->context == NULL)
		entry->context = AllocSetContextCreate(relations_context,
											   "cbrepl_source relation",
											   ALLOCSET_SMALL_MINSIZE,
											   ALLOCSET_SMALL_INITSIZE,
											   ALLOCSET_SMALL_MAXSIZE);

	/* valid from here on: an invalidation that comes meanwhile has it built again */
	entry->ancestors = NIL;
	entry->published = false;
	entry->schema_sent = false;
	MemoryContextResetAndDeleteChildren(entry->context);
	entry->valid = true;

	for (ancestor = partition_parent(entry->relid); OidIsValid(ancestor);
		 ancestor = partition_parent(ancestor))
		ancestors = lappend_oid(ancestors, ancestor);
	entry->publish_as = published_as(options, rel, ancestors);

	caller = MemoryContextSwitchTo(entry->context);
	entry->ancestors = list_copy(ancestors);
	if (entry->publish_as == entry->relid)
		build_columns(entry, rel, rel);
	else if (OidIsValid(entry->publish_as))
	{
		Relation	root = RelationIdGetRelation(entry->publish_as);

		if (!RelationIsValid(root))
			elog(ERROR, "could not open relation with OID %u", entry->publish_as);
		build_columns(entry, rel, root);
		RelationClose(root);
	}
	entry->published = OidIsValid(entry->publish_as);
	MemoryContextSwitchTo(caller);
}

RelationEntry *
relation_entry(const State *state, Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	RelationEntry *entry;
	bool		found;

	entry = hash_search(relations, &relid, HASH_ENTER, &found);
	if (!found)
		memset((char *) entry + sizeof(relid), 0, sizeof(*entry) - sizeof(relid));
	if (!entry->valid)
		build_entry(entry, &state->options, rel);
	return entry;
}

/*
 * wire.c
 *		The messages of pgoutput, protocol version 1, as PostgreSQL 15 writes
 *		them.  Nothing here decides what is sent.
 */
#include "cbrepl_source.h"

#include "access/sysattr.h"
#include "access/tupmacs.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "libpq/pqformat.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#define MESSAGE_BEGIN 'B'
#define MESSAGE_COMMIT 'C'
#define MESSAGE_RELATION 'R'
#define MESSAGE_TYPE 'Y'
#define MESSAGE_TRUNCATE 'T'
#define MESSAGE_MESSAGE 'M'

#define ATTRIBUTE_IS_IDENTITY 1
#define MESSAGE_IS_TRANSACTIONAL 1

void
write_begin(StringInfo out, const TransactionBlock *block)
{
	pq_sendbyte(out, MESSAGE_BEGIN);
	pq_sendint64(out, block->commit_lsn);
	pq_sendint64(out, block->commit_time);
	pq_sendint(out, block->xid, 4);
}

void
write_commit(StringInfo out, const TransactionBlock *block)
{
	pq_sendbyte(out, MESSAGE_COMMIT);
	pq_sendbyte(out, 0);		/* flags, unused */
	pq_sendint64(out, block->commit_lsn);
	pq_sendint64(out, block->end_lsn);
	pq_sendint64(out, block->commit_time);
}

/* pgoutput leaves pg_catalog's name out, to save space. */
static void
write_namespace(StringInfo out, Oid namespace)
{
	char	   *name;

	if (namespace == PG_CATALOG_NAMESPACE)
	{
		pq_sendbyte(out, '\0');
		return;
	}
	name = get_namespace_name(namespace);
	if (name == NULL)
		elog(ERROR, "cache lookup failed for namespace %u", namespace);
	pq_sendstring(out, name);
}

bool
attribute_is_sent(Form_pg_attribute att)
{
	return !att->attisdropped && !attribute_is_generated(att);
}

void
write_relation(StringInfo out, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	bool		full = rel->rd_rel->relreplident == REPLICA_IDENTITY_FULL;
	Bitmapset  *identity = full ? NULL : RelationGetIdentityKeyBitmap(rel);
	int			count = 0;
	int			i;

	pq_sendbyte(out, MESSAGE_RELATION);
	pq_sendint(out, RelationGetRelid(rel), 4);
	write_namespace(out, RelationGetNamespace(rel));
	pq_sendstring(out, RelationGetRelationName(rel));
	pq_sendbyte(out, rel->rd_rel->relreplident);

	for (i = 0; i < desc->natts; i++)
		if (attribute_is_sent(TupleDescAttr(desc, i)))
			count++;
	pq_sendint(out, count, 2);

	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		bool		in_identity;

		if (!attribute_is_sent(att))
			continue;
		in_identity = full ||
			bms_is_member(att->attnum - FirstLowInvalidHeapAttributeNumber, identity);
		pq_sendbyte(out, in_identity ? ATTRIBUTE_IS_IDENTITY : 0);
		pq_sendstring(out, NameStr(att->attname));
		pq_sendint(out, (int) att->atttypid, 4);
		pq_sendint(out, att->atttypmod, 4);
	}
	bms_free(identity);
}

/* The type's own OID, with the name of the type below a domain. */
void
write_type(StringInfo out, Oid type)
{
	Oid			base = getBaseType(type);
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(base));
	Form_pg_type form;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for type %u", base);
	form = (Form_pg_type) GETSTRUCT(tuple);

	pq_sendbyte(out, MESSAGE_TYPE);
	pq_sendint(out, type, 4);
	write_namespace(out, form->typnamespace);
	pq_sendstring(out, NameStr(form->typname));
	ReleaseSysCache(tuple);
}

static void
write_tuple(StringInfo out, RelationEntry *entry, TupleDesc desc, HeapTuple tuple)
{
	int			i;

	heap_deform_tuple(tuple, desc, entry->values, entry->nulls);
	pq_sendint(out, entry->ncolumns, 2);
	for (i = 0; i < entry->ncolumns; i++)
	{
		Column	   *column = &entry->columns[i];
		Datum		value = entry->values[column->source];
		char	   *text;

		if (entry->nulls[column->source])
		{
			pq_sendbyte(out, 'n');
			continue;
		}
		if (TupleDescAttr(desc, column->source)->attlen == -1 &&
			VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(value)))
		{
			/* unchanged TOAST: its value is not in the WAL */
			pq_sendbyte(out, 'u');
			continue;
		}
		text = OutputFunctionCall(&column->output, value);
		pq_sendbyte(out, 't');
		pq_sendcountedtext(out, text, strlen(text), false);
	}
}

/* Writes Insert, Update or Delete; the tuples have the layout desc. */
void
write_row_change(StringInfo out, char action, RelationEntry *entry,
				 TupleDesc desc, HeapTuple oldtuple, HeapTuple newtuple)
{
	pq_sendbyte(out, action);
	pq_sendint(out, entry->publish_as, 4);
	if (oldtuple != NULL)
	{
		pq_sendbyte(out, entry->replica_identity == REPLICA_IDENTITY_FULL ? 'O' : 'K');
		write_tuple(out, entry, desc, oldtuple);
	}
	if (newtuple != NULL)
	{
		pq_sendbyte(out, 'N');
		write_tuple(out, entry, desc, newtuple);
	}
}

void
write_truncate(StringInfo out, int nrelids, const Oid *relids, uint8 flags)
{
	int			i;

	pq_sendbyte(out, MESSAGE_TRUNCATE);
	pq_sendint(out, nrelids, 4);
	pq_sendbyte(out, flags);
	for (i = 0; i < nrelids; i++)
		pq_sendint(out, relids[i], 4);
}

void
write_message(StringInfo out, bool transactional, XLogRecPtr lsn,
			  const char *prefix, const char *body, Size len)
{
	pq_sendbyte(out, MESSAGE_MESSAGE);
	pq_sendbyte(out, transactional ? MESSAGE_IS_TRANSACTIONAL : 0);
	pq_sendint64(out, lsn);
	pq_sendstring(out, prefix);
	pq_sendint(out, (int) len, 4);
	appendBinaryStringInfo(out, body, (int) len);
}

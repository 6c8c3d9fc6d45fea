/*
 * compat.h
 *		What differs between the two server families that this library is built
 *		for: Greenplum 6 (PostgreSQL 9.4) and PostgreSQL 15.
 *
 * On Greenplum 6 the library takes over the walsender's loop and compiles
 * every file.  On PostgreSQL 15 it is an ordinary output plugin: that build
 * exists so that tests can compare its messages with pgoutput's own.
 */
#ifndef CBREPL_COMPAT_H
#define CBREPL_COMPAT_H

#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "replication/reorderbuffer.h"
#include "utils/hsearch.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#ifdef GP_VERSION_NUM

#define CBREPL_GREENPLUM 1

/* The first OID that initdb gives out: types below it are the same everywhere. */
#define FirstGenbkiObjectId 10000

#define attribute_is_generated(att) false
#define RelationGetIdentityKeyBitmap(rel) \
	RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_IDENTITY_KEY)
#define txn_commit_time(txn) ((txn)->commit_time)

/* partition.c: Greenplum 6 has a partition catalog of its own */
extern Oid	partition_parent(Oid relid);
extern bool relation_has_partitions(Relation rel);

#else

#include "catalog/partition.h"
#include "utils/lsyscache.h"

#define attribute_is_generated(att) ((att)->attgenerated != '\0')
#define txn_commit_time(txn) ((txn)->xact_time.commit_time)

#define partition_parent(relid) \
	(get_rel_relispartition(relid) ? get_partition_parent(relid, true) : InvalidOid)
#define relation_has_partitions(rel) \
	((rel)->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)

#endif

/* A hash table whose key, at the start of an entry, is an OID or a transaction id. */
static inline HTAB *
create_id_hash(const char *name, Size entrysize, MemoryContext context)
{
	HASHCTL		ctl;
	int			flags = HASH_ELEM | HASH_CONTEXT;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(uint32);
	ctl.entrysize = entrysize;
	ctl.hcxt = context;
#ifdef CBREPL_GREENPLUM
	ctl.hash = oid_hash;
	flags |= HASH_FUNCTION;
#else
	flags |= HASH_BLOBS;
#endif
	return hash_create(name, 64, &ctl, flags);
}

#endif

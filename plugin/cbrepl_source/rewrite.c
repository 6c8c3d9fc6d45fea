/*
 * rewrite.c
 *		Catalog rows that a rewrite has moved.
 *
 * While a transaction is decoded, the server must know in which command each
 * catalog row that it made or removed was written.  It notes that by the row's
 * place.  VACUUM FULL or CLUSTER of a catalog moves rows, and leaves a mapping
 * from old to new places in files under pg_logical/mappings for whoever has yet
 * to decode the transactions that wrote the rows.  Greenplum 6 writes these
 * files and does not find them again: it looks for those of relation 0
 * (ResolveCminCmaxDuringDecoding).  Decoding then fails at the same transaction
 * for ever.  So they are applied here, before the transaction is decoded.
 *
 * A rewrite that is committed while the transaction is decoded is too late for
 * that: the stream fails, and the next connection finds the mapping.
 */
#include "cbrepl_source.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/rewriteheap.h"
#include "access/transam.h"
#include "miscadmin.h"
#include "replication/reorderbuffer.h"
#include "storage/fd.h"

#define MAPPINGS "pg_logical/mappings"

/* As in the server's reorderbuffer.c, which keeps them to itself. */
typedef struct TupleCidKey
{
	RelFileNode node;
	ItemPointerData tid;
} TupleCidKey;

typedef struct TupleCid
{
	TupleCidKey key;
	CommandId	cmin;
	CommandId	cmax;
	CommandId	combocid;
} TupleCid;

typedef struct MappingFile
{
	XLogRecPtr	lsn;
	char		path[MAXPGPATH];
} MappingFile;

static bool
wrote(ReorderBufferTXN *txn, TransactionId xid)
{
	dlist_iter	iter;

	if (txn->xid == xid)
		return true;
	dlist_foreach(iter, &txn->subtxns)
	{
		if (dlist_container(ReorderBufferTXN, node, iter.cur)->xid == xid)
			return true;
	}
	return false;
}

static void
set_key(TupleCidKey *key, RelFileNode node, ItemPointer tid)
{
	memset(key, 0, sizeof(*key));	/* padding, too: it is hashed */
	key->node = node;
	ItemPointerCopy(tid, &key->tid);
}

static void
apply_file(HTAB *cids, const char *path)
{
	LogicalRewriteMappingData map;
	int			fd = OpenTransientFile((char *) path, O_RDONLY | PG_BINARY, 0);
	int			n;

	if (fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	while ((n = read(fd, &map, sizeof(map))) == sizeof(map))
	{
		TupleCidKey key;
		TupleCid   *was;
		TupleCid   *is;
		bool		found;

		set_key(&key, map.old_node, &map.old_tid);
		was = hash_search(cids, &key, HASH_FIND, NULL);
		if (was == NULL)
			continue;
		set_key(&key, map.new_node, &map.new_tid);
		is = hash_search(cids, &key, HASH_ENTER, &found);
		if (found)
			continue;
		is->cmin = was->cmin;
		is->cmax = was->cmax;
		is->combocid = was->combocid;
	}
	if (n != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": it ends within a mapping, or: %m", path)));
	CloseTransientFile(fd);
}

static int
by_lsn(const void *a, const void *b)
{
	XLogRecPtr	x = ((const MappingFile *) a)->lsn;
	XLogRecPtr	y = ((const MappingFile *) b)->lsn;

	return x < y ? -1 : x > y;
}

/* Lets the decoder find the transaction's catalog rows where they are now. */
void
apply_rewrites(ReorderBufferTXN *txn)
{
	MappingFile *files;
	int			nfiles = 0;
	int			room = 16;
	DIR		   *dir;
	struct dirent *entry;
	int			i;

	if (txn->tuplecid_hash == NULL)
		return;					/* it changed no catalog */
	files = palloc(room * sizeof(MappingFile));
	dir = AllocateDir(MAPPINGS);
	while ((entry = ReadDir(dir, MAPPINGS)) != NULL)
	{
		Oid			database;
		Oid			relation;
		uint32		high;
		uint32		low;
		TransactionId mapped;
		TransactionId creator;

		if (sscanf(entry->d_name, LOGICAL_REWRITE_FORMAT,
				   &database, &relation, &high, &low, &mapped, &creator) != 6 ||
			(database != MyDatabaseId && database != InvalidOid) ||
			!wrote(txn, mapped) ||
			!TransactionIdDidCommit(creator))
			continue;
		if (nfiles == room)
			files = repalloc(files, (room *= 2) * sizeof(MappingFile));
		files[nfiles].lsn = (uint64) high << 32 | low;
		snprintf(files[nfiles].path, MAXPGPATH, MAPPINGS "/%s", entry->d_name);
		nfiles++;
	}
	FreeDir(dir);
	/* a row may have been moved several times */
	qsort(files, nfiles, sizeof(MappingFile), by_lsn);
	for (i = 0; i < nfiles; i++)
		apply_file(txn->tuplecid_hash, files[i].path);
	pfree(files);
}

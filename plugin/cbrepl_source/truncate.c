/*
 * truncate.c
 *		Sends a TRUNCATE that hook.c has left in WAL.
 */
#include "cbrepl_source.h"

#include "utils/relcache.h"

static Oid
listed_relid(const WalMessage *message, int i)
{
	Oid			relid;

	memcpy(&relid, message->data + 1 + i * sizeof(Oid), sizeof(Oid));
	return relid;
}

static bool
names_relation(const WalMessage *message, int count, Oid relid)
{
	int			i;

	for (i = 0; i < count; i++)
		if (listed_relid(message, i) == relid)
			return true;
	return false;
}

/*
 * Names every table that is published as itself.  A partition that is
 * published as its root is left out where the root is truncated, too; alone it
 * is named as itself, so that a reader that cannot place it stops instead of
 * keeping its rows.
 *
 * Runs under the historic snapshot of what follows the TRUNCATE: a table that
 * is not there any more was dropped by the same transaction.
 */
void
send_truncate(State *state, const WalMessage *message)
{
	int			count;
	int			sent = 0;
	Oid		   *relids;
	int			i;

	if (message->len < 1 || (message->len - 1) % sizeof(Oid) != 0)
		elog(ERROR, "TRUNCATE message of %zu bytes ends at %X/%X", message->len,
			 (uint32) (message->lsn >> 32), (uint32) message->lsn);
	count = (message->len - 1) / sizeof(Oid);
	relids = palloc(count * sizeof(Oid));

	for (i = 0; i < count; i++)
	{
		Relation	rel = RelationIdGetRelation(listed_relid(message, i));
		RelationEntry *entry;

		if (!RelationIsValid(rel))
			continue;
		entry = relation_entry(state, rel);
		if (entry->published &&
			(entry->publish_as == entry->relid ||
			 (!relation_has_partitions(rel) && !names_relation(message, count, entry->publish_as))))
		{
			block_start(state);
			send_schema(state, rel, entry);
			relids[sent++] = entry->relid;
		}
		RelationClose(rel);
	}
	if (sent > 0)
	{
		write_truncate(message_start(state), sent, relids, (uint8) message->data[0]);
		message_end(state);
	}
}

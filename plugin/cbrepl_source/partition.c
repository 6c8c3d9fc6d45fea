/*
 * partition.c
 *		Partitions of Greenplum 6, as a segment sees them.
 *
 * pg_partition and pg_partition_rule are filled on the coordinator only.  A
 * segment knows partitions by inheritance, and tells them from other children
 * by the dependency on the parent, which is automatic for a partition.
 */
#include "cbrepl_source.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_inherits.h"
#include "utils/fmgroids.h"

/* The table of which relid is a direct partition, or InvalidOid. */
Oid
partition_parent(Oid relid)
{
	Relation	depend = heap_open(DependRelationId, AccessShareLock);
	ScanKeyData key[3];
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			parent = InvalidOid;

	ScanKeyInit(&key[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&key[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	ScanKeyInit(&key[2], Anum_pg_depend_objsubid, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(0));
	scan = systable_beginscan(depend, DependDependerIndexId, true, NULL, 3, key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		if (form->refclassid == RelationRelationId && form->refobjsubid == 0 &&
			form->deptype == DEPENDENCY_AUTO)
			parent = form->refobjid;
	}
	systable_endscan(scan);
	heap_close(depend, AccessShareLock);
	return parent;
}

bool
relation_has_partitions(Relation rel)
{
	Relation	inherits;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			child = InvalidOid;

	if (!rel->rd_rel->relhassubclass)
		return false;
	inherits = heap_open(InheritsRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_inherits_inhparent, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationGetRelid(rel)));
	scan = systable_beginscan(inherits, InheritsParentIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		child = ((Form_pg_inherits) GETSTRUCT(tuple))->inhrelid;
	systable_endscan(scan);
	heap_close(inherits, AccessShareLock);
	return OidIsValid(child) && partition_parent(child) == RelationGetRelid(rel);
}

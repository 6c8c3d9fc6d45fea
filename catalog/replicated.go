package catalog

import (
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// ReplicatedTable is a table of the source as the target records it: what one node
// published when its rows were first taken, or when a change of it was accepted.
// What a source publishes later is compared with it.
type ReplicatedTable struct {
	Name    Name
	Content dtx.Content
	// OID is the table's on that node: a table that was dropped and made again
	// under its name has another.
	OID      uint32
	Identity pgoutput.ReplicaIdentity
	// Columns are the published ones, in table order.
	Columns []ReplicatedColumn
}

// ReplicatedColumn is a column of a ReplicatedTable.
type ReplicatedColumn struct {
	Name     string `json:"name"`
	TypeOID  uint32 `json:"type"`
	Modifier int32  `json:"mod"`
	// Key marks a column of the replica identity.
	Key bool `json:"key,omitempty"`
}

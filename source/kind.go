package source

import (
	"fmt"

	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

// Kind is a kind of source.
type Kind string

const (
	// Contract is a source that delivers the stream contract through pgoutput.
	Contract Kind = "contract"
	// Greenplum6 is an unmodified Greenplum 6 with plugin cbrepl_source: its
	// publications are lists kept in a table (Publish), its commit records name no
	// participants.
	Greenplum6 Kind = "greenplum6"
)

// Plugin is the output plugin of the source's slots.
func (k Kind) Plugin() repl.Plugin {
	if k == Greenplum6 {
		return repl.CbreplSource
	}
	return repl.PgOutput
}

// firstContractVersion is the first version of a cluster whose servers have
// pgoutput; Greenplum 6 is based on 9.4.
const firstContractVersion = 100000

// checkKind compares the kind that is wanted with what was found.
func checkKind(want Kind, found *catalogue) error {
	if want == "" || want == found.kind {
		return nil
	}
	e := &dtx.Error{Op: "find segments", Content: dtx.AtContent(dtx.Coordinator), Class: dtx.ClassStop}
	e.Msg = fmt.Sprintf("source.kind is %s, but the server is not the coordinator of a Greenplum 6 cluster", want)
	if want == Contract {
		e.Msg = fmt.Sprintf("source.kind is %s, but the server is the coordinator of a Greenplum 6 cluster", want)
	}
	e.Hint = "Leave source.kind out, so that it is found, or correct source.coordinator.dsn"
	return e
}

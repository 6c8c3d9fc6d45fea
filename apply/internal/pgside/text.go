package pgside

import (
	"strconv"
	"strings"

	"cbrepl/dtx"
)

// QuoteIdent quotes a name for SQL.
func QuoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// QuoteLiteral quotes a string constant; standard_conforming_strings is on.
func QuoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// TextArray prints an array literal, every element quoted.
func TextArray(vals []string) string {
	r := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range vals {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + r.Replace(v) + `"`)
	}
	b.WriteByte('}')
	return b.String()
}

// SplitList takes apart what array_to_string(..., ',') printed.
func SplitList(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(string(b), ",")
}

// Atoi reads a number that a server printed; 0 for anything else.
func Atoi(b []byte) int64 {
	v, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// Atou reads an unsigned number that a server printed; 0 for anything else.
func Atou(b []byte) uint64 {
	v, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// OID reads an object identifier that a server printed.
func OID(b []byte) uint32 { return uint32(Atou(b)) }

// AppendPositions prints positions as two array literals, of contents and LSNs.
func AppendPositions(contents, lsns []byte, ps []dtx.Position) (c, l []byte) {
	contents, lsns = append(contents, '{'), append(lsns, '{')
	for i, p := range ps {
		if i > 0 {
			contents, lsns = append(contents, ','), append(lsns, ',')
		}
		contents = strconv.AppendInt(contents, int64(p.Content), 10)
		lsns = append(lsns, p.LSN.String()...)
	}
	return append(contents, '}'), append(lsns, '}')
}

// ParsePositions reads what array_to_string(..., ',') printed of both arrays.
func ParsePositions(contents, lsns []byte) ([]dtx.Position, bool) {
	cs, ls := SplitList(contents), SplitList(lsns)
	if len(cs) != len(ls) {
		return nil, false
	}
	out := make([]dtx.Position, 0, len(cs))
	for i := range cs {
		c, err := strconv.ParseInt(cs[i], 10, 16)
		if err != nil {
			return nil, false
		}
		lsn, err := dtx.ParseLSN(ls[i])
		if err != nil {
			return nil, false
		}
		out = append(out, dtx.Position{Content: dtx.Content(c), LSN: lsn})
	}
	return out, true
}

// OnOff is a switch as a setting's value.
func OnOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

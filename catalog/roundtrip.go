package catalog

import (
	"slices"
	"strconv"
	"strings"
)

// printedType is a type as format_type prints it, taken apart.
type printedType struct {
	base  string // without modifier and array brackets
	mods  []int
	array bool
}

func parsePrinted(s string) printedType {
	var p printedType
	if rest, ok := strings.CutSuffix(s, "[]"); ok {
		s, p.array = rest, true
	}
	// A quoted name has no modifier that is known here.
	if strings.Contains(s, `"`) {
		p.base = s
		return p
	}
	before, rest, ok := strings.Cut(s, "(")
	if !ok {
		p.base = s
		return p
	}
	list, after, ok := strings.Cut(rest, ")")
	if !ok {
		p.base = s
		return p
	}
	for _, f := range strings.Split(list, ",") {
		mod, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil { // an extension's own kind: compared as it stands
			p.base, p.mods = s, nil
			return p
		}
		p.mods = append(p.mods, mod)
	}
	p.base = before + after
	return p
}

// modAt returns the i-th modifier, or def.
func (p printedType) modAt(i, def int) int {
	if i < len(p.mods) {
		return p.mods[i]
	}
	return def
}

// CompareType is Column.CompareType of a column of the type that format_type printed.
func CompareType(printed string) string {
	p := parsePrinted(printed)
	name := map[string]string{"numeric": "pg_catalog.numeric"}[p.base]
	if p.array && p.base == "character" { // by itself it is compared without its blanks
		name = "pg_catalog.bpchar"
	}
	if name == "" || len(p.mods) == 0 {
		return ""
	}
	mods := make([]string, len(p.mods))
	for i, m := range p.mods {
		mods[i] = strconv.Itoa(m)
	}
	name += "(" + strings.Join(mods, ", ") + ")"
	if p.array {
		name += "[]"
	}
	return name
}

const (
	unbounded        = 1 << 30
	defaultPrecision = 6 // of times and intervals
)

// intDigits are the digits that integers can have.
var intDigits = map[string]int{"smallint": 5, "integer": 10, "bigint": 19}

// widening lists, per source type, the other types that hold each of its values
// and give the same text back as far as it says the same value.
var widening = map[string][]string{
	"smallint": {"integer", "bigint", "real", "double precision"},
	"integer":  {"bigint", "double precision"},
	"real":     {"double precision"},
}

// RoundTrips reports whether every value of the source type, as text, is taken by
// the target type and comes back as the same value; else why not. Both are as
// format_type prints them, the target's with domains looked through.
func RoundTrips(src, dst string) (bool, string) {
	s, d := parsePrinted(src), parsePrinted(dst)
	if s.array != d.array {
		return anyText(d), "one is an array, the other is not"
	}
	if bareName(s.base) == bareName(d.base) {
		return sameBase(s, d)
	}
	switch {
	case anyText(d) && !s.array:
		return true, ""
	case isText(s.base) && (d.base == "character varying" || d.base == "text"):
		return s.modAt(0, unbounded) <= d.modAt(0, unbounded), "longer values do not fit"
	case d.base == "interval" && strings.HasPrefix(s.base, "interval "):
		return d.modAt(0, defaultPrecision) >= s.modAt(0, defaultPrecision), "fractions of a second would be rounded"
	case d.base == "numeric" && intDigits[s.base] > 0:
		if len(d.mods) == 0 {
			return true, ""
		}
		return d.modAt(1, 0) >= 0 && d.mods[0]-d.modAt(1, 0) >= intDigits[s.base], "larger values do not fit"
	}
	return slices.Contains(widening[s.base], d.base), "values would be changed or refused"
}

func isText(base string) bool {
	switch base {
	case "text", "character varying", "character", "bpchar", "name":
		return true
	}
	return false
}

// anyText reports whether the type stores any text as it is.
func anyText(d printedType) bool {
	return !d.array && len(d.mods) == 0 && (d.base == "text" || d.base == "character varying")
}

// bareName drops the schema of a qualified name: a renamed schema carries its
// types along.
func bareName(s string) string {
	if body, ok := strings.CutSuffix(s, `"`); ok {
		// The last quoted identifier, with doubled quotes inside.
		for i := len(body) - 1; i >= 0; i-- {
			if body[i] != '"' {
				continue
			}
			if i > 0 && body[i-1] == '"' {
				i--
				continue
			}
			return s[i:]
		}
		return s
	}
	return s[strings.LastIndexByte(s, '.')+1:]
}

// sameBase compares modifiers of two types of one name.
func sameBase(s, d printedType) (bool, string) {
	if slices.Equal(s.mods, d.mods) {
		return true, ""
	}
	switch base := d.base; {
	case base == "character varying" || base == "bit varying" || base == "character":
		return s.modAt(0, unbounded) <= d.modAt(0, unbounded), "longer values do not fit"
	case base == "numeric":
		if len(d.mods) == 0 {
			return true, ""
		}
		if len(s.mods) == 0 {
			return false, "values would be rounded or refused"
		}
		ss, ds := s.modAt(1, 0), d.modAt(1, 0)
		return ds >= ss && d.mods[0]-ds >= s.mods[0]-ss, "values would be rounded or refused"
	case strings.HasPrefix(base, "time") || strings.HasPrefix(base, "interval"):
		return d.modAt(0, defaultPrecision) >= s.modAt(0, defaultPrecision), "fractions of a second would be rounded"
	}
	return len(d.mods) == 0 && d.base != "bit", "their modifiers differ"
}

// Takes reports whether the column takes every value of a source type, as
// RoundTrips does; a domain of the source may stand there under its own name.
func (c *Column) Takes(src string) (bool, string) {
	ok, why := RoundTrips(src, c.BaseName)
	if !ok {
		if same, _ := RoundTrips(src, c.TypeName); same {
			return true, ""
		}
	}
	return ok, why
}

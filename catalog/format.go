package catalog

import (
	"fmt"
	"strings"

	"cbrepl/router"
)

// FormatType prints a type of pg_catalog and its modifier, -1 for none, as the
// server's format_type does. Other types are not known: their OIDs are a server's own.
func FormatType(oid uint32, mod int32) (string, bool) {
	t, ok := router.BuiltinType(oid)
	if !ok {
		return "", false
	}
	suffix := ""
	if t.Kind == router.ArrayType {
		t, suffix = t.Elem, "[]"
	}
	return formatBase(t, mod) + suffix, true
}

func formatBase(t *router.Type, mod int32) string {
	withLength := func(n int32) string { return fmt.Sprintf("%s(%d)", t.Name, n) }
	switch t.OID {
	case 1042: // without a modifier it is no character(1)
		if mod < 4 {
			return "bpchar"
		}
		return withLength(mod - 4)
	case 1043:
		if mod >= 4 {
			return withLength(mod - 4)
		}
	case 1560:
		if mod < 0 {
			return `"bit"`
		}
		return withLength(mod)
	case 1562:
		if mod >= 0 {
			return withLength(mod)
		}
	case 1700:
		if mod >= 4 {
			m := mod - 4
			scale := m & 0x7ff // 11 bits with a sign
			return fmt.Sprintf("numeric(%d,%d)", m>>16&0xffff, (scale^1024)-1024)
		}
	case 1083, 1114, 1184, 1266:
		if mod >= 0 {
			name, zone, _ := strings.Cut(t.Name, " ")
			return fmt.Sprintf("%s(%d) %s", name, mod, zone)
		}
	case 1186:
		if mod >= 0 {
			return "interval" + intervalFields(mod)
		}
	}
	return t.Name
}

// Bits of an interval's modifier (MONTH, YEAR, ... of datetime.h).
const (
	month, year, day     = 1 << 1, 1 << 2, 1 << 3
	hour, minute, second = 1 << 10, 1 << 11, 1 << 12
)

// intervalFields prints the fields and the precision of an interval's modifier.
func intervalFields(mod int32) string {
	fields := map[int32]string{
		year: " year", month: " month", day: " day", hour: " hour", minute: " minute", second: " second",
		year | month: " year to month", day | hour: " day to hour", day | hour | minute: " day to minute",
		day | hour | minute | second: " day to second", hour | minute: " hour to minute",
		hour | minute | second: " hour to second", minute | second: " minute to second",
	}[mod>>16&0x7fff]
	if precision := mod & 0xffff; precision != 0xffff {
		return fmt.Sprintf("%s(%d)", fields, precision)
	}
	return fields
}

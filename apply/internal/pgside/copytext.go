package pgside

import (
	"bytes"
	"strconv"
	"strings"

	"cbrepl/apply"
)

// CopyLine reads the line number of a COPY's error context ("COPY t, line 3,
// column c: ..."), 0 when there is none.
func CopyLine(where string) int {
	n, _ := copyPlace(where)
	return n
}

// CopyColumn reads the column of a COPY's error context, "" when there is none.
func CopyColumn(where string) string {
	_, column := copyPlace(where)
	return column
}

// copyPlace reads line and column. The words for them depend on the server's
// language, and what follows the first colon can be any value.
func copyPlace(where string) (line int, column string) {
	rest, ok := strings.CutPrefix(where, "COPY ")
	if !ok {
		return 0, ""
	}
	parts := strings.Split(rest, ", ")[1:]
	for i, part := range parts {
		part, _, value := strings.Cut(part, ":")
		n, ok := lastNumber(part)
		if !ok {
			continue
		}
		if value || i+1 == len(parts) {
			return n, ""
		}
		column, _, ok := strings.Cut(parts[i+1], ":")
		if f := strings.Fields(column); ok && len(f) > 0 {
			return n, f[len(f)-1]
		}
		return n, ""
	}
	return 0, ""
}

func lastNumber(s string) (int, bool) {
	f := strings.Fields(s)
	if len(f) == 0 {
		return 0, false
	}
	n, err := strconv.Atoi(f[len(f)-1])
	return n, err == nil
}

// Unescape appends the value of a field of COPY text that the engine wrote.
func Unescape(dst, raw []byte) []byte {
	for j := 0; j < len(raw); j++ {
		c := raw[j]
		if c == '\\' && j+1 < len(raw) {
			j++
			switch c = raw[j]; c {
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			case 't':
				c = '\t'
			}
		}
		dst = append(dst, c)
	}
	return dst
}

// ParseCopy reads COPY text that the engine wrote into columns.
func ParseCopy(data []byte, vals []*apply.Vec) {
	var field []byte
	for line := range bytes.Lines(data) {
		line = line[:len(line)-1]
		for i := range vals {
			raw, rest, _ := bytes.Cut(line, []byte{'\t'})
			line = rest
			if string(raw) == `\N` {
				vals[i].AppendNull()
				continue
			}
			field = Unescape(field[:0], raw)
			vals[i].Append(field)
		}
	}
}

// AppendField appends a value as a field of COPY text; nil is NULL.
func AppendField(dst, v []byte) []byte {
	if v == nil {
		return append(dst, '\\', 'N')
	}
	start := 0
	for i, c := range v {
		var e byte
		switch c {
		case '\\':
			e = '\\'
		case '\n':
			e = 'n'
		case '\r':
			e = 'r'
		case '\t':
			e = 't'
		default:
			continue
		}
		dst = append(dst, v[start:i]...)
		dst = append(dst, '\\', e)
		start = i + 1
	}
	return append(dst, v[start:]...)
}

package pgside

import (
	"bytes"
	"strconv"
	"strings"

	"cbrepl/apply"
)

// CopyLine reads the line number of a COPY's error context ("COPY t, line 3,
// column c: ..."), 0 when there is none. The word for line depends on the
// server's language, and the value behind the colon can be anything.
func CopyLine(where string) int {
	rest, ok := strings.CutPrefix(where, "COPY ")
	if !ok {
		return 0
	}
	for _, part := range strings.Split(rest, ", ")[1:] {
		part, _, _ = strings.Cut(part, ":")
		f := strings.Fields(part)
		if len(f) == 0 {
			continue
		}
		if n, err := strconv.Atoi(f[len(f)-1]); err == nil {
			return n
		}
	}
	return 0
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

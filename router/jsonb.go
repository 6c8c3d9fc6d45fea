package router

import (
	"bytes"
	"cmp"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// Container flags of utils/jsonb.h, mixed into the hash where one begins.
const (
	jsonArray  = 0x40000000
	jsonObject = 0x20000000
)

// maxJSONDepth bounds recursion; servers stop far earlier at max_stack_depth.
const maxJSONDepth = 100_000

// jsonHash is the effect of a piece of a document on the running hash of
// jsonb_hash: rotate left by rot, then xor sum. jsonb_hash only rotates and
// xors, so the effects of pieces can be taken in any order and joined later,
// which is what sorting an object's keys needs.
type jsonHash struct {
	sum uint32
	rot int // modulo 32
}

// then is the effect of h followed by g.
func (h jsonHash) then(g jsonHash) jsonHash {
	return jsonHash{bits.RotateLeft32(h.sum, g.rot) ^ g.sum, (h.rot + g.rot) & 31}
}

func jsonScalar(h uint32) jsonHash { return jsonHash{h, 1} }

// jsonMember is a key and its value while an object is read.
type jsonMember struct {
	off, len int // the key, on the scratch
	key      uint32
	value    jsonHash
}

// hashJSONB is jsonb_hash of the document in v.
func hashJSONB(v []byte, s *scratch) (uint32, error) {
	p := jsonReader{cursor: cursor{v: v}, s: s}
	p.space()
	if p.end() {
		return 0, errSyntax
	}
	first := p.v[p.i]
	h, empty, err := p.value(0)
	if err != nil {
		return 0, err
	}
	if p.space(); !p.end() {
		return 0, errSyntax
	}
	if empty { // jsonb_hash leaves an empty root alone
		return 0, nil
	}
	if first != '[' && first != '{' { // a root scalar is stored as an array of one
		h = jsonHash{jsonArray, 0}.then(h)
	}
	return h.sum, nil
}

// jsonReader reads JSON text as jsonb_in does.
type jsonReader struct {
	cursor
	s *scratch
}

func (p *jsonReader) space() {
	for p.i < len(p.v) {
		switch p.v[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

// value reads one value; empty tells that it is an empty container.
func (p *jsonReader) value(depth int) (h jsonHash, empty bool, err error) {
	if p.end() {
		return h, false, errSyntax
	}
	switch c := p.v[p.i]; {
	case c == '{':
		return p.object(depth + 1)
	case c == '[':
		return p.array(depth + 1)
	case c == '"':
		str, err := p.string()
		return jsonScalar(hashBytes(str)), false, err
	case c == '-' || c-'0' <= 9:
		h, err := p.number()
		return jsonScalar(h), false, err
	case p.word("true"):
		return jsonScalar(2), false, nil
	case p.word("false"):
		return jsonScalar(4), false, nil
	case p.word("null"):
		return jsonScalar(1), false, nil
	}
	return h, false, errSyntax
}

func (p *jsonReader) word(w string) bool {
	if rest := p.v[p.i:]; len(rest) >= len(w) && string(rest[:len(w)]) == w {
		p.i += len(w)
		return true
	}
	return false
}

func (p *jsonReader) array(depth int) (h jsonHash, empty bool, err error) {
	if depth > maxJSONDepth {
		return h, false, errDepth
	}
	h.sum = jsonArray
	p.i++
	if p.space(); p.skip(']') {
		return h, true, nil
	}
	for {
		p.space()
		mark := len(p.s.buf)
		e, _, err := p.value(depth)
		p.s.buf = p.s.buf[:mark]
		if err != nil {
			return h, false, err
		}
		h = h.then(e)
		p.space()
		switch {
		case p.skip(','):
		case p.skip(']'):
			return h, false, nil
		default:
			return h, false, errSyntax
		}
	}
}

// object reads an object. Members are hashed in the order jsonb stores them:
// by length of the key, then by its bytes; of equal keys the last one counts.
func (p *jsonReader) object(depth int) (h jsonHash, empty bool, err error) {
	if depth > maxJSONDepth {
		return h, false, errDepth
	}
	h.sum = jsonObject
	p.i++
	if p.space(); p.skip('}') {
		return h, true, nil
	}
	s := p.s
	mark, first := len(s.buf), len(s.members)
	sorted := true
	for {
		if p.space(); p.end() || p.v[p.i] != '"' {
			return h, false, errSyntax
		}
		off := len(s.buf)
		key, err := p.string()
		if err != nil {
			return h, false, err
		}
		m := jsonMember{off: off, len: len(key), key: hashBytes(key)}
		s.buf = append(s.buf[:off], key...)
		if p.space(); !p.skip(':') {
			return h, false, errSyntax
		}
		p.space()
		top := len(s.buf)
		if m.value, _, err = p.value(depth); err != nil {
			return h, false, err
		}
		s.buf = s.buf[:top]
		if n := len(s.members); n > first {
			sorted = sorted && s.compareKeys(s.members[n-1], m) < 0
		}
		s.members = append(s.members, m)
		p.space()
		if p.skip(',') {
			continue
		}
		if p.skip('}') {
			break
		}
		return h, false, errSyntax
	}
	ms := s.members[first:]
	if !sorted { // a server prints members in its own order
		slices.SortStableFunc(ms, s.compareKeys)
	}
	for i, m := range ms {
		if i+1 < len(ms) && !sorted && s.compareKeys(m, ms[i+1]) == 0 {
			continue
		}
		h = h.then(jsonScalar(m.key)).then(m.value)
	}
	s.members = s.members[:first]
	s.buf = s.buf[:mark]
	return h, false, nil
}

// compareKeys orders members as lengthCompareJsonbStringValue does.
func (s *scratch) compareKeys(a, b jsonMember) int {
	if c := cmp.Compare(a.len, b.len); c != 0 {
		return c
	}
	return bytes.Compare(s.buf[a.off:a.off+a.len], s.buf[b.off:b.off+b.len])
}

// string reads a string. The result aliases the text when nothing is escaped,
// else it lies at the end of the scratch.
func (p *jsonReader) string() ([]byte, error) {
	p.i++
	start := p.i
	for p.i < len(p.v) {
		switch c := p.v[p.i]; {
		case c == '"':
			p.i++
			return p.v[start : p.i-1], nil
		case c == '\\':
			return p.escaped(start)
		case c < ' ':
			return nil, errSyntax
		}
		p.i++
	}
	return nil, errSyntax
}

// escaped goes on with a string that has an escape at p.i.
func (p *jsonReader) escaped(start int) ([]byte, error) {
	mark := len(p.s.buf)
	buf := append(p.s.buf, p.v[start:p.i]...)
	for p.i < len(p.v) {
		c := p.v[p.i]
		p.i++
		switch {
		case c == '"':
			p.s.buf = buf
			return buf[mark:], nil
		case c < ' ':
			return nil, errSyntax
		case c != '\\':
			buf = append(buf, c)
			continue
		}
		if p.end() {
			return nil, errSyntax
		}
		c = p.v[p.i]
		p.i++
		switch c {
		case '"', '\\', '/':
			buf = append(buf, c)
		case 'b':
			buf = append(buf, '\b')
		case 'f':
			buf = append(buf, '\f')
		case 'n':
			buf = append(buf, '\n')
		case 'r':
			buf = append(buf, '\r')
		case 't':
			buf = append(buf, '\t')
		case 'u':
			r, ok := p.unicode()
			if !ok {
				return nil, errSyntax
			}
			buf = utf8.AppendRune(buf, r)
		default:
			return nil, errSyntax
		}
	}
	return nil, errSyntax
}

// unicode reads what follows \u: a character, or a pair of surrogates. U+0000
// is refused, as jsonb does.
func (p *jsonReader) unicode() (rune, bool) {
	r, ok := p.hex4()
	switch {
	case !ok || r == 0 || r >= 0xdc00 && r <= 0xdfff:
		return 0, false
	case r < 0xd800 || r > 0xdbff:
		return r, true
	}
	if !p.skip('\\') || !p.skip('u') {
		return 0, false
	}
	low, ok := p.hex4()
	if !ok || low < 0xdc00 || low > 0xdfff {
		return 0, false
	}
	return (r-0xd800)<<10 + (low - 0xdc00) + 0x10000, true
}

func (p *jsonReader) hex4() (rune, bool) {
	hi, ok1 := hexByte(p.v[p.i:])
	if !ok1 {
		return 0, false
	}
	lo, ok2 := hexByte(p.v[p.i+2:])
	p.i += 4
	return rune(hi)<<8 | rune(lo), ok2
}

// number reads a JSON number and returns its hash as a numeric.
func (p *jsonReader) number() (uint32, error) {
	start := p.i
	p.skip('-')
	switch {
	case p.skip('0'):
	case p.digitNext():
		p.digits()
	default:
		return 0, errSyntax
	}
	if p.skip('.') && !p.digits() {
		return 0, errSyntax
	}
	if p.skip('e') || p.skip('E') {
		if !p.skip('-') {
			p.skip('+')
		}
		if !p.digits() {
			return 0, errSyntax
		}
	}
	return hashNumeric(p.v[start:p.i], p.s)
}

// digits skips digits and tells whether there were any.
func (p *jsonReader) digits() bool {
	start := p.i
	for p.digitNext() {
		p.i++
	}
	return p.i > start
}

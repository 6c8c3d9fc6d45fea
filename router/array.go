package router

// maxDims is PostgreSQL's MAXDIM.
const maxDims = 6

// arrayReader walks the elements of an array's text in storage order, as
// array_in reads it: optional bounds ("[0:1][2:3]="), braces, elements plain or
// quoted, NULL.
type arrayReader struct {
	cursor
	// ndim, dims and lower are known when next has returned more == false.
	ndim  int
	dims  [maxDims]int
	lower [maxDims]int32

	bounded int          // dimensions given by bounds
	sizes   [maxDims]int // what the bounds say
	counts  [maxDims]int // members of the braces open at each depth
	depth   int
	want    bool // an element or an opening brace must follow
}

// readArray starts on v; it reads up to the first brace.
func readArray(v []byte) (arrayReader, error) {
	a := arrayReader{cursor: cursor{v: v}}
	for i := range a.lower {
		a.lower[i], a.dims[i] = 1, -1
	}
	for a.space(); a.skip('['); {
		if a.bounded == maxDims {
			return a, errSyntax
		}
		if err := a.bound(); err != nil {
			return a, err
		}
	}
	if a.bounded > 0 && !a.skip('=') {
		return a, errSyntax
	}
	if a.space(); !a.skip('{') {
		return a, errSyntax
	}
	if a.space(); a.skip('}') {
		if a.bounded > 0 {
			return a, errDims
		}
		return a, a.finish()
	}
	a.depth, a.want = 1, true
	return a, nil
}

// bound reads "lower:upper]" or "size]".
func (a *arrayReader) bound() error {
	lo, ok := a.int32()
	if !ok {
		return errSyntax
	}
	hi := lo
	if a.skip(':') {
		if hi, ok = a.int32(); !ok {
			return errSyntax
		}
	} else {
		lo = 1
	}
	if !a.skip(']') || hi < lo {
		return errSyntax
	}
	a.lower[a.bounded] = int32(lo)
	a.sizes[a.bounded] = hi - lo + 1
	a.bounded++
	return nil
}

func (a *arrayReader) int32() (int, bool) {
	start := a.i
	if !a.skip('-') {
		a.skip('+')
	}
	for a.digitNext() {
		a.i++
	}
	x, err := parseInt(a.v[start:a.i], -1<<31, 1<<31-1)
	return int(x), err == nil
}

func (a *arrayReader) space() {
	for a.i < len(a.v) && isSpace(a.v[a.i]) {
		a.i++
	}
}

// isSpace is array_isspace and the C locale's isspace.
func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// finish checks that nothing follows the array.
func (a *arrayReader) finish() error {
	a.depth = 0
	if a.space(); !a.end() {
		return errSyntax
	}
	if a.bounded > 0 {
		if a.bounded != a.ndim {
			return errDims
		}
		for i := range a.ndim {
			if a.sizes[i] != a.dims[i] {
				return errDims
			}
		}
	}
	return nil
}

// next returns the next element, or more == false at the end. An element with
// escapes lies at the end of the scratch.
func (a *arrayReader) next(s *scratch) (elem []byte, null, more bool, err error) {
	for a.depth > 0 {
		if a.space(); a.end() {
			return nil, false, false, errSyntax
		}
		level := a.depth - 1
		switch c := a.v[a.i]; {
		case a.want && c == '{':
			if a.depth == maxDims || a.ndim > 0 && a.depth == a.ndim {
				return nil, false, false, errDims
			}
			a.i++
			a.depth++
			a.counts[a.depth-1] = 0
		case a.want:
			if a.ndim == 0 {
				a.ndim = a.depth
			}
			if a.ndim != a.depth {
				return nil, false, false, errDims
			}
			a.want = false
			a.counts[level]++
			elem, null, err = a.element(s)
			return elem, null, true, err
		case c == ',':
			a.i++
			a.want = true
		case c == '}':
			a.i++
			if a.dims[level] < 0 {
				a.dims[level] = a.counts[level]
			}
			if a.dims[level] != a.counts[level] {
				return nil, false, false, errDims
			}
			if a.depth--; a.depth == 0 {
				return nil, false, false, a.finish()
			}
			a.counts[a.depth-1]++
		default:
			return nil, false, false, errSyntax
		}
	}
	return nil, false, false, nil
}

// element reads one element, plain or quoted, up to the delimiter behind it.
func (a *arrayReader) element(s *scratch) (elem []byte, null bool, err error) {
	if a.skip('"') {
		start := a.i
		for a.i < len(a.v) {
			switch a.v[a.i] {
			case '"':
				a.i++
				return a.v[start : a.i-1], false, nil
			case '\\':
				elem, err = a.quoted(s, start)
				return elem, false, err
			}
			a.i++
		}
		return nil, false, errSyntax
	}
	start := a.i
	for a.i < len(a.v) {
		switch a.v[a.i] {
		case ',', '}':
			elem = a.v[start:a.i]
			for len(elem) > 0 && isSpace(elem[len(elem)-1]) {
				elem = elem[:len(elem)-1]
			}
			if len(elem) == 0 {
				return nil, false, errSyntax
			}
			return elem, foldEqual(elem, "null"), nil
		case '"', '\\', '{': // a server quotes an element with one of these
			return nil, false, errSyntax
		}
		a.i++
	}
	return nil, false, errSyntax
}

// quoted goes on with a quoted element that has a backslash at a.i.
func (a *arrayReader) quoted(s *scratch, start int) ([]byte, error) {
	mark := len(s.buf)
	s.buf = append(s.buf, a.v[start:a.i]...)
	for a.i < len(a.v) {
		c := a.v[a.i]
		a.i++
		switch c {
		case '"':
			return s.buf[mark:], nil
		case '\\':
			if a.end() {
				return nil, errSyntax
			}
			c = a.v[a.i]
			a.i++
		}
		s.buf = append(s.buf, c)
	}
	return nil, errSyntax
}

// hashArray is hash_array: the elements in storage order, NULL as 0;
// dimensions and bounds do not matter.
func (n *node) hashArray(v []byte, s *scratch) (uint32, error) {
	a, err := readArray(v)
	if err != nil {
		return 0, err
	}
	h := uint32(1)
	mark := len(s.buf)
	for {
		elem, null, more, err := a.next(s)
		if err != nil {
			return 0, err
		}
		if !more {
			return h, nil
		}
		var eh uint32
		if !null {
			if eh, err = n.elem.hash(elem, s); err != nil {
				return 0, err
			}
		}
		h = h*31 + eh
		s.buf = s.buf[:mark]
	}
}

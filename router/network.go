package router

// inetValue is the part of an inet or cidr that is hashed: address family (2
// for IPv4, 3 for IPv6, whatever the platform's own numbers), mask length and
// address.
type inetValue struct {
	key [18]byte
	n   int
}

// parse reads an address with an optional /mask. The short forms of cidr
// ("10/8") are refused: no server prints them.
func (a *inetValue) parse(v []byte, cidr bool) error {
	addr, mask := v, []byte(nil)
	for i, c := range v {
		if c == '/' {
			addr, mask = v[:i], v[i+1:]
			break
		}
	}
	var size int
	if hasByte(addr, ':') {
		a.key[0] = 3
		size = 16
		if !ipv6((*[16]byte)(a.key[2:18]), addr) {
			return errSyntax
		}
	} else {
		a.key[0] = 2
		size = 4
		if !ipv4((*[4]byte)(a.key[2:6]), addr) {
			return errSyntax
		}
	}
	a.n = 2 + size
	maskLen := size * 8
	if len(mask) != 0 || len(addr) != len(v) {
		m, err := parsePlainUint(mask, 128)
		if err != nil {
			return errSyntax
		}
		if int(m) > maskLen {
			return errRange
		}
		maskLen = int(m)
	}
	a.key[1] = byte(maskLen)
	if !cidr {
		return nil
	}
	for i, b := range a.key[2:a.n] {
		if keep := maskLen - 8*i; keep < 8 && b<<max(keep, 0) != 0 {
			return errHost
		}
	}
	return nil
}

// ipv4 reads four decimal octets.
func ipv4(dst *[4]byte, v []byte) bool {
	c := cursor{v: v}
	for i := range dst {
		if i > 0 && !c.skip('.') {
			return false
		}
		start := c.i
		x, ok := c.num(1, 3)
		if !ok || x > 255 || v[start] == '0' && c.i > start+1 {
			return false
		}
		dst[i] = byte(x)
	}
	return c.end()
}

// ipv6 reads groups of up to four hexadecimal digits, one "::" for a run of
// zeros, and a dotted IPv4 address in place of the last two groups.
func ipv6(dst *[16]byte, v []byte) bool {
	*dst = [16]byte{}
	n, gap := 0, -1 // bytes written; where the run of zeros goes
	if len(v) >= 2 && v[0] == ':' {
		if v[1] != ':' {
			return false
		}
		gap = 0
		v = v[2:]
	}
	for len(v) > 0 {
		x, i := 0, 0
		for i < len(v) && i < 4 {
			d, ok := unhex(v[i])
			if !ok {
				break
			}
			x = x<<4 | int(d)
			i++
		}
		if i < len(v) && v[i] == '.' {
			if n > 12 || !ipv4((*[4]byte)(dst[n:n+4]), v) {
				return false
			}
			n += 4
			break
		}
		if i == 0 || n > 14 {
			return false
		}
		dst[n], dst[n+1] = byte(x>>8), byte(x)
		n += 2
		if v = v[i:]; len(v) == 0 {
			break
		}
		if v[0] != ':' || len(v) == 1 {
			return false
		}
		v = v[1:]
		if v[0] == ':' {
			if gap >= 0 {
				return false
			}
			gap = n
			v = v[1:]
		}
	}
	if gap < 0 {
		return n == 16
	}
	if n > 14 { // the run stands for at least one group
		return false
	}
	tail := n - gap
	copy(dst[16-tail:], dst[gap:n])
	clear(dst[gap : 16-tail])
	return true
}

// hexRun reads up to len(dst) bytes of hexadecimal, checking that separators
// stand only after every k-th byte, all alike. It returns the bytes read.
func hexRun(dst []byte, v []byte) int {
	n := 0
	var sep byte
	every := 0
	since := 0
	for len(v) > 0 {
		if n == len(dst) {
			return 0
		}
		b, ok := hexByte(v)
		if !ok {
			return 0
		}
		dst[n] = b
		n++
		since++
		if v = v[2:]; len(v) == 0 {
			break
		}
		if c := v[0]; c == ':' || c == '-' || c == '.' {
			if sep == 0 {
				sep, every = c, since
			}
			if c != sep || since != every || len(v) == 1 {
				return 0
			}
			since = 0
			v = v[1:]
		}
	}
	if every != 0 && since != every {
		return 0
	}
	return n
}

// parseMAC reads a macaddr: 08:00:2b:01:02:03 and the other documented
// groupings by colon, hyphen or dot, or none.
func parseMAC(v []byte) (m [6]byte, err error) {
	if hexRun(m[:], v) != 6 {
		return m, errSyntax
	}
	return m, nil
}

// parseMAC8 reads a macaddr8; six bytes are widened as macaddr8_in does.
func parseMAC8(v []byte) (m [8]byte, err error) {
	switch hexRun(m[:], v) {
	case 8:
		return m, nil
	case 6:
		return [8]byte{m[0], m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}, nil
	}
	return m, errSyntax
}

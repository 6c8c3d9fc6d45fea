package pgbinary

import "encoding/binary"

// A numeric is a run of digits to the base 10,000 (numeric.c). The weight is the
// power of that base which the first stands for; dscale counts the decimals that
// are printed.
const (
	numericNegative    = 0x4000
	numericNaN         = 0xc000
	numericInfinity    = 0xd000
	numericNegInfinity = 0xf000
	infinityDscale     = 0x20 // as numeric_send writes it
	groupDigits        = 4
	maxDscale          = 16383
	maxGroups          = 3000 // of numeric_recv
)

func encodeNumeric(dst, text []byte) ([]byte, bool) {
	switch string(text) {
	case "NaN":
		return appendNumeric(dst, 0, 0, numericNaN, 0), true
	case "Infinity":
		return appendNumeric(dst, 0, 0, numericInfinity, infinityDscale), true
	case "-Infinity":
		return appendNumeric(dst, 0, 0, numericNegInfinity, infinityDscale), true
	}
	sign := 0
	if len(text) > 0 && text[0] == '-' {
		sign, text = numericNegative, text[1:]
	}
	whole := 0
	for whole < len(text) && text[whole] != '.' {
		whole++
	}
	dscale := max(0, len(text)-whole-1)
	if whole == 0 || dscale > maxDscale || whole < len(text) && dscale == 0 {
		return dst, false
	}
	groups := (whole + groupDigits - 1) / groupDigits
	weight := groups - 1
	groups += (dscale + groupDigits - 1) / groupDigits
	header := len(dst)
	dst = appendNumeric(dst, groups, weight, sign, dscale)
	// at is the place in text of the group's first digit; the first group may
	// begin before the text, the last end behind it.
	at := whole - (weight+1)*groupDigits
	skipped := 0
	for range groups {
		v := 0
		for range groupDigits {
			c := byte('0')
			if at >= 0 && at < len(text) {
				c = text[at]
			}
			if c < '0' || c > '9' {
				return dst, false
			}
			v = 10*v + int(c-'0')
			at++
		}
		if at == whole {
			at++ // the point
		}
		if v == 0 && skipped >= 0 {
			skipped++
			continue
		}
		if skipped > 0 { // leading zeros are no part of the value
			weight -= skipped
			groups -= skipped
		}
		skipped = -1
		dst = binary.BigEndian.AppendUint16(dst, uint16(v))
	}
	if skipped >= 0 { // zero has no digits, no weight and no sign
		groups, weight, sign = 0, 0, 0
	}
	for groups > 0 && dst[len(dst)-1] == 0 && dst[len(dst)-2] == 0 {
		dst = dst[:len(dst)-2]
		groups--
	}
	appendNumeric(dst[:header], groups, weight, sign, dscale)
	return dst, groups <= maxGroups
}

func appendNumeric(dst []byte, groups, weight, sign, dscale int) []byte {
	for _, v := range [...]int{groups, weight, sign, dscale} {
		dst = binary.BigEndian.AppendUint16(dst, uint16(v))
	}
	return dst
}

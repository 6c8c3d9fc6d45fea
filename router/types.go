package router

import (
	"fmt"
	"strings"
)

// op is how values of a type are read and hashed.
type op uint8

const (
	opNone op = iota // no hash function; see builtin.why
	opBool
	opChar
	opInt2
	opInt4
	opInt8
	opOID
	opXid // xid and cid
	opXid8
	opFloat4
	opFloat8
	opNumeric
	opText
	opBpchar
	opName
	opBytea
	opDate
	opTime
	opTimetz
	opTimestamp
	opTimestamptz
	opInterval
	opInet
	opCidr
	opMacaddr
	opMacaddr8
	opUUID
	opBit
	opJSONB
	opLSN
	opTid
	opMoney
	opOIDVector
	opInt2Vector
	opArray
	opRange
	opMultirange
	opRecord
)

// builtin describes one type of pg_catalog: the columns of pg_type that matter
// for hashing, and the operator classes that hash it.
type builtin struct {
	oid, array uint32
	typname    string
	sqlName    string // as format_type prints it
	op         op
	size       int16 // bytes of the datum, -1 when it varies
	align      uint8 // bytes
	elem       uint32
	// def and legacy are the names of the hash operator classes a column of the
	// type can have, the default one first.
	def, legacy string
	why         string // why there is no default class
}

const (
	whyReg    = "it prints as a name and is hashed by OID"
	whyNoHash = "the type has no hash operator class"
)

// builtins lists pg_type of PostgreSQL 15. Catalogue-only types are left out.
// The default classes of bit and varbit are Greenplum's: stock PostgreSQL has none.
var builtins = [...]builtin{
	{16, 1000, "bool", "boolean", opBool, 1, 1, 0, "bool_ops", "cdbhash_bool_ops", ""},
	{17, 1001, "bytea", "bytea", opBytea, -1, 4, 0, "bytea_ops", "cdbhash_bytea_ops", ""},
	{18, 1002, "char", `"char"`, opChar, 1, 1, 0, "char_ops", "cdbhash_char_ops", ""},
	{19, 1003, "name", "name", opName, 64, 1, 0, "name_ops", "cdbhash_name_ops", ""},
	{20, 1016, "int8", "bigint", opInt8, 8, 8, 0, "int8_ops", "cdbhash_int8_ops", ""},
	{21, 1005, "int2", "smallint", opInt2, 2, 2, 0, "int2_ops", "cdbhash_int2_ops", ""},
	{22, 1006, "int2vector", "int2vector", opInt2Vector, -1, 4, 0, "array_ops", "", ""},
	{23, 1007, "int4", "integer", opInt4, 4, 4, 0, "int4_ops", "cdbhash_int4_ops", ""},
	{24, 1008, "regproc", "regproc", opNone, 4, 4, 0, "", "", whyReg},
	{25, 1009, "text", "text", opText, -1, 4, 0, "text_ops text_pattern_ops varchar_ops varchar_pattern_ops", "cdbhash_text_ops", ""},
	{26, 1028, "oid", "oid", opOID, 4, 4, 0, "oid_ops", "cdbhash_oid_ops", ""},
	{27, 1010, "tid", "tid", opTid, 6, 2, 0, "tid_ops", "cdbhash_tid_ops", ""},
	{28, 1011, "xid", "xid", opXid, 4, 4, 0, "xid_ops", "", ""},
	{29, 1012, "cid", "cid", opXid, 4, 4, 0, "cid_ops", "", ""},
	{30, 1013, "oidvector", "oidvector", opOIDVector, -1, 4, 0, "oidvector_ops", "cdbhash_oidvector_ops", ""},
	{114, 199, "json", "json", opNone, -1, 4, 0, "", "", whyNoHash},
	{142, 143, "xml", "xml", opNone, -1, 4, 0, "", "", whyNoHash},
	{600, 1017, "point", "point", opNone, 16, 8, 0, "", "", whyNoHash},
	{601, 1018, "lseg", "lseg", opNone, 32, 8, 0, "", "", whyNoHash},
	{602, 1019, "path", "path", opNone, -1, 8, 0, "", "", whyNoHash},
	{603, 1020, "box", "box", opNone, 32, 8, 0, "", "", whyNoHash},
	{604, 1027, "polygon", "polygon", opNone, -1, 8, 0, "", "", whyNoHash},
	{628, 629, "line", "line", opNone, 24, 8, 0, "", "", whyNoHash},
	{650, 651, "cidr", "cidr", opCidr, -1, 4, 0, "inet_ops cidr_ops", "cdbhash_inet_ops", ""},
	{700, 1021, "float4", "real", opFloat4, 4, 4, 0, "float4_ops", "cdbhash_float4_ops", ""},
	{701, 1022, "float8", "double precision", opFloat8, 8, 8, 0, "float8_ops", "cdbhash_float8_ops", ""},
	{718, 719, "circle", "circle", opNone, 24, 8, 0, "", "", whyNoHash},
	{774, 775, "macaddr8", "macaddr8", opMacaddr8, 8, 4, 0, "macaddr8_ops", "", ""},
	{790, 791, "money", "money", opMoney, 8, 8, 0, "", "cdbhash_cash_ops", whyNoHash},
	{829, 1040, "macaddr", "macaddr", opMacaddr, 6, 4, 0, "macaddr_ops", "cdbhash_macaddr_ops", ""},
	{869, 1041, "inet", "inet", opInet, -1, 4, 0, "inet_ops cidr_ops", "cdbhash_inet_ops", ""},
	{1033, 1034, "aclitem", "aclitem", opNone, 12, 4, 0, "", "", whyReg},
	{1042, 1014, "bpchar", "character", opBpchar, -1, 4, 0, "bpchar_ops bpchar_pattern_ops", "cdbhash_bpchar_ops", ""},
	{1043, 1015, "varchar", "character varying", opText, -1, 4, 0, "text_ops varchar_ops varchar_pattern_ops text_pattern_ops", "cdbhash_text_ops cdbhash_varchar_ops", ""},
	{1082, 1182, "date", "date", opDate, 4, 4, 0, "date_ops", "cdbhash_date_ops", ""},
	{1083, 1183, "time", "time without time zone", opTime, 8, 8, 0, "time_ops", "cdbhash_time_ops", ""},
	{1114, 1115, "timestamp", "timestamp without time zone", opTimestamp, 8, 8, 0, "timestamp_ops", "cdbhash_timestamp_ops", ""},
	{1184, 1185, "timestamptz", "timestamp with time zone", opTimestamptz, 8, 8, 0, "timestamptz_ops", "cdbhash_timestamptz_ops", ""},
	{1186, 1187, "interval", "interval", opInterval, 16, 8, 0, "interval_ops", "cdbhash_interval_ops", ""},
	{1266, 1270, "timetz", "time with time zone", opTimetz, 12, 8, 0, "timetz_ops", "cdbhash_timetz_ops", ""},
	{1560, 1561, "bit", "bit", opBit, -1, 4, 0, "bit_ops", "cdbhash_bit_ops", ""},
	{1562, 1563, "varbit", "bit varying", opBit, -1, 4, 0, "varbit_ops", "cdbhash_bit_ops cdbhash_varbit_ops", ""},
	{1700, 1231, "numeric", "numeric", opNumeric, -1, 4, 0, "numeric_ops", "cdbhash_numeric_ops", ""},
	{1790, 2201, "refcursor", "refcursor", opNone, -1, 4, 0, "", "", whyNoHash},
	{2202, 2207, "regprocedure", "regprocedure", opNone, 4, 4, 0, "", "", whyReg},
	{2203, 2208, "regoper", "regoper", opNone, 4, 4, 0, "", "", whyReg},
	{2204, 2209, "regoperator", "regoperator", opNone, 4, 4, 0, "", "", whyReg},
	{2205, 2210, "regclass", "regclass", opNone, 4, 4, 0, "", "", whyReg},
	{2206, 2211, "regtype", "regtype", opNone, 4, 4, 0, "", "", whyReg},
	{2950, 2951, "uuid", "uuid", opUUID, 16, 1, 0, "uuid_ops", "cdbhash_uuid_ops", ""},
	{2970, 2949, "txid_snapshot", "txid_snapshot", opNone, -1, 8, 0, "", "", whyNoHash},
	{3220, 3221, "pg_lsn", "pg_lsn", opLSN, 8, 8, 0, "pg_lsn_ops", "", ""},
	{3614, 3643, "tsvector", "tsvector", opNone, -1, 4, 0, "", "", whyNoHash},
	{3615, 3645, "tsquery", "tsquery", opNone, -1, 4, 0, "", "", whyNoHash},
	{3734, 3735, "regconfig", "regconfig", opNone, 4, 4, 0, "", "", whyReg},
	{3769, 3770, "regdictionary", "regdictionary", opNone, 4, 4, 0, "", "", whyReg},
	{3802, 3807, "jsonb", "jsonb", opJSONB, -1, 4, 0, "jsonb_ops", "", ""},
	{3904, 3905, "int4range", "int4range", opRange, -1, 4, 23, "range_ops", "", ""},
	{3906, 3907, "numrange", "numrange", opRange, -1, 4, 1700, "range_ops", "", ""},
	{3908, 3909, "tsrange", "tsrange", opRange, -1, 8, 1114, "range_ops", "", ""},
	{3910, 3911, "tstzrange", "tstzrange", opRange, -1, 8, 1184, "range_ops", "", ""},
	{3912, 3913, "daterange", "daterange", opRange, -1, 4, 1082, "range_ops", "", ""},
	{3926, 3927, "int8range", "int8range", opRange, -1, 8, 20, "range_ops", "", ""},
	{4072, 4073, "jsonpath", "jsonpath", opNone, -1, 4, 0, "", "", whyNoHash},
	{4089, 4090, "regnamespace", "regnamespace", opNone, 4, 4, 0, "", "", whyReg},
	{4096, 4097, "regrole", "regrole", opNone, 4, 4, 0, "", "", whyReg},
	{4191, 4192, "regcollation", "regcollation", opNone, 4, 4, 0, "", "", whyReg},
	{4451, 6150, "int4multirange", "int4multirange", opMultirange, -1, 4, 3904, "multirange_ops", "", ""},
	{4532, 6151, "nummultirange", "nummultirange", opMultirange, -1, 4, 3906, "multirange_ops", "", ""},
	{4533, 6152, "tsmultirange", "tsmultirange", opMultirange, -1, 8, 3908, "multirange_ops", "", ""},
	{4534, 6153, "tstzmultirange", "tstzmultirange", opMultirange, -1, 8, 3910, "multirange_ops", "", ""},
	{4535, 6155, "datemultirange", "datemultirange", opMultirange, -1, 4, 3912, "multirange_ops", "", ""},
	{4536, 6157, "int8multirange", "int8multirange", opMultirange, -1, 8, 3926, "multirange_ops", "", ""},
	{5038, 5039, "pg_snapshot", "pg_snapshot", opNone, -1, 8, 0, "", "", whyNoHash},
	{5069, 271, "xid8", "xid8", opXid8, 8, 8, 0, "xid8_ops", "", ""},
}

// builtinByOID finds a base, range or multirange type of pg_catalog.
func builtinByOID(oid uint32) *builtin {
	for i := range builtins {
		if builtins[i].oid == oid {
			return &builtins[i]
		}
	}
	return nil
}

// typ describes the type as a caller would: a fresh value each time.
func (b *builtin) typ() *Type {
	t := &Type{OID: b.oid, Name: b.sqlName, Kind: BaseType}
	switch b.op {
	case opRange:
		t.Kind = RangeType
	case opMultirange:
		t.Kind = MultirangeType
	}
	if b.elem != 0 {
		t.Elem = builtinByOID(b.elem).typ()
	}
	return t
}

func (b *builtin) arrayType() *Type {
	return &Type{OID: b.array, Name: b.sqlName + "[]", Kind: ArrayType, Elem: b.typ()}
}

// BuiltinType describes a type of pg_catalog by OID: base, range, multirange and
// array types. Types without a hash function are described too, so that New can
// name them.
func BuiltinType(oid uint32) (*Type, bool) {
	for i := range builtins {
		switch b := &builtins[i]; oid {
		case b.oid:
			return b.typ(), true
		case b.array:
			return b.arrayType(), true
		}
	}
	return nil, false
}

// aliases are the SQL spellings of types whose format_type name differs from
// both columns of the table.
var aliases = [...][2]string{
	{"int", "int4"}, {"float", "float8"}, {"decimal", "numeric"}, {"dec", "numeric"},
}

// ParseType reads a type name of pg_catalog as SQL or pg_type spells it
// ("int4", "bigint", "timestamp with time zone", "text[]", "_int4"). A modifier
// ("numeric(10,2)") is accepted and has no effect: values are taken as the
// server prints them, which is after the modifier was applied. The bare word
// char names the one-byte type "char" of pg_type; character and char(n) name
// the blank-padded type.
func ParseType(name string) (*Type, error) {
	s := strings.Join(strings.Fields(strings.ToLower(name)), " ")
	s = strings.TrimPrefix(s, "pg_catalog.")
	array := strings.HasPrefix(s, "_")
	s = strings.TrimPrefix(s, "_")
	for strings.HasSuffix(s, "[]") {
		array = true
		s = strings.TrimSpace(strings.TrimSuffix(s, "[]"))
	}
	if open := strings.IndexByte(s, '('); open >= 0 {
		end := strings.IndexByte(s, ')')
		if end < open {
			return nil, fmt.Errorf("%q is not a type name: unbalanced parenthesis", name)
		}
		s = strings.TrimSpace(s[:open]) + s[end+1:]
		switch s {
		case "char":
			s = "bpchar"
		case "float":
			return nil, fmt.Errorf("%q is ambiguous: say real or double precision", name)
		}
	}
	for _, a := range aliases {
		if s == a[0] {
			s = a[1]
		}
	}
	for i := range builtins {
		if b := &builtins[i]; s == b.typname || s == b.sqlName {
			if array {
				return b.arrayType(), nil
			}
			return b.typ(), nil
		}
	}
	return nil, fmt.Errorf("%q is not a built-in type: only a server's catalogue describes it", name)
}

// NamedOpclass resolves the words "default" and "cdbhash", which stand for the
// type's own class and its legacy one, to an operator class name for a Column;
// any other word is a name already.
func NamedOpclass(t *Type, word string) (string, error) {
	switch word {
	case "", "default":
		return "", nil
	case "cdbhash":
	default:
		return word, nil
	}
	bt := t.Base()
	if bt != nil && bt.Kind == ArrayType {
		return "cdbhash_array_ops", nil
	}
	if bt != nil && bt.Kind == BaseType {
		if b := builtinByOID(bt.OID); b != nil && b.legacy != "" {
			return strings.Fields(b.legacy)[0], nil
		}
	}
	return "", fmt.Errorf("the legacy hash family has no class for type %s", t.Name)
}

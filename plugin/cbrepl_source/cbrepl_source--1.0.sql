\echo Use "CREATE EXTENSION cbrepl_source" to load this file. \quit

CREATE FUNCTION version() RETURNS text
	AS 'MODULE_PATHNAME', 'cbrepl_source_version' LANGUAGE C IMMUTABLE STRICT;

CREATE FUNCTION flush_lsn() RETURNS text
	AS 'MODULE_PATHNAME', 'cbrepl_source_flush_lsn' LANGUAGE C VOLATILE STRICT;

CREATE FUNCTION confirmed_lsn(slot text) RETURNS text
	AS 'MODULE_PATHNAME', 'cbrepl_source_confirmed_lsn' LANGUAGE C VOLATILE STRICT;

CREATE FUNCTION distributed_snapshot() RETURNS text
	AS 'MODULE_PATHNAME', 'cbrepl_source_distributed_snapshot' LANGUAGE C VOLATILE STRICT;

CREATE FUNCTION emit_message(prefix text, content text) RETURNS void
	AS 'MODULE_PATHNAME', 'cbrepl_source_emit_message' LANGUAGE C VOLATILE STRICT;

REVOKE ALL ON FUNCTION emit_message(text, text) FROM PUBLIC;

/*
 * options.c
 *		The options of START_REPLICATION, and the list of tables in them.
 *
 * Greenplum 6 has no publications.  The daemon keeps the list of tables and
 * hands it over at every start: names, and OIDs beside them, so that a table
 * that is renamed later stays published.
 */
#include "cbrepl_source.h"

#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#ifndef CBREPL_GREENPLUM
#include "parser/scansup.h"
#endif

typedef struct TableName
{
	const char *schema;
	const char *name;
} TableName;

static int
compare_table_names(const void *a, const void *b)
{
	const TableName *left = a;
	const TableName *right = b;
	int			order = strcmp(left->schema, right->schema);

	return order != 0 ? order : strcmp(left->name, right->name);
}

static void
skip_spaces(const char **at)
{
	while (**at == ' ')
		(*at)++;
}

/* Reads one "quoted" identifier, where "" stands for a quote, and moves *at behind it. */
static char *
parse_identifier(const char **at, const char *whole)
{
	StringInfoData name;
	const char *p = *at;

	if (*p != '"')
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("option \"tables\" must be a list of quoted names, \"schema\".\"table\": found \"%.64s\" at offset %d",
						p, (int) (p - whole))));
	initStringInfo(&name);
	for (p++;; p++)
	{
		if (*p == '\0')
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("option \"tables\" has an unterminated name at offset %d", (int) (*at - whole))));
		if (*p == '"' && *++p != '"')
			break;
		appendStringInfoChar(&name, *p);
	}
	if (name.len == 0 || name.len >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("option \"tables\" has a name of %d bytes at offset %d, a name has 1 to %d",
						name.len, (int) (*at - whole), NAMEDATALEN - 1)));
	*at = p;
	return name.data;
}

static void
parse_tables(const char *value, Options *options)
{
	const char *at = value;
	int			room = 16;

	options->tables = palloc(room * sizeof(TableName));
	options->ntables = 0;
	skip_spaces(&at);
	while (*at != '\0')
	{
		TableName  *table;

		if (options->ntables == room)
		{
			room *= 2;
			options->tables = repalloc(options->tables, room * sizeof(TableName));
		}
		table = &options->tables[options->ntables++];
		table->schema = parse_identifier(&at, value);
		if (*at != '.')
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("option \"tables\" names \"%s\" without a table: write \"schema\".\"table\"", table->schema)));
		at++;
		table->name = parse_identifier(&at, value);
		skip_spaces(&at);
		if (*at == '\0')
			break;
		if (*at != ',')
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("option \"tables\" has \"%.1s\" where a comma is expected, at offset %d", at, (int) (at - value))));
		at++;
		skip_spaces(&at);
	}
	qsort(options->tables, options->ntables, sizeof(TableName), compare_table_names);
}

static List *
parse_relids(const char *value)
{
	List	   *relids = NIL;
	const char *at = value;

	while (*at != '\0')
	{
		char	   *end;
		unsigned long relid;

		errno = 0;
		relid = strtoul(at, &end, 10);
		if (end == at || errno != 0 || relid == 0 || relid > PG_UINT32_MAX ||
			(*end != ',' && *end != '\0'))
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("option \"relids\" must be a list of table OIDs: found \"%.64s\"", at)));
		relids = lappend_oid(relids, (Oid) relid);
		at = *end == ',' ? end + 1 : end;
	}
	return relids;
}

static bool
parse_boolean(const char *name, const char *value)
{
	bool		result;

	if (!parse_bool(value, &result))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"%s\" must be true or false, not \"%s\"", name, value)));
	return result;
}

void
parse_options(List *elements, Options *options)
{
	bool		have_version = false;
	bool		have_tables = false;
	ListCell   *cell;

	memset(options, 0, sizeof(*options));
	foreach(cell, elements)
	{
		DefElem    *element = (DefElem *) lfirst(cell);
		const char *value = element->arg != NULL ? strVal(element->arg) : "";

		if (strcmp(element->defname, "proto_version") == 0)
		{
			if (strcmp(value, "1") != 0)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cbrepl_source speaks protocol version 1, the client asked for \"%s\"", value)));
			have_version = true;
		}
		else if (strcmp(element->defname, "publication_names") == 0)
		{
			/* for pgoutput's clients; the list of tables is what counts */
		}
		else if (strcmp(element->defname, "tables") == 0)
		{
			parse_tables(value, options);
			have_tables = true;
		}
		else if (strcmp(element->defname, "relids") == 0)
		{
			options->relids = parse_relids(value);
			have_tables = true;
		}
		else if (strcmp(element->defname, "publish_via_partition_root") == 0)
			options->via_root = parse_boolean(element->defname, value);
		else
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_PARAMETER),
					 errmsg("unknown option \"%s\" for cbrepl_source", element->defname),
					 errhint("It knows proto_version, publication_names, tables, relids and publish_via_partition_root.")));
	}
	if (!have_version || !have_tables)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cbrepl_source needs the options proto_version and tables or relids")));
}

bool
table_is_listed(const Options *options, Oid relid)
{
	const char *schema = NULL;
	const char *name = NULL;

	if (list_member_oid(options->relids, relid))
		return true;
	name = get_rel_name(relid);
	if (name != NULL)
		schema = get_namespace_name(get_rel_namespace(relid));
	return schema != NULL && name_is_listed(options, relid, schema, name);
}

/* As table_is_listed, of a table that the catalogue need not hold any more. */
bool
name_is_listed(const Options *options, Oid relid, const char *schema, const char *name)
{
	TableName	key;

	if (list_member_oid(options->relids, relid))
		return true;
	key.schema = schema;
	key.name = name;
	return bsearch(&key, options->tables, options->ntables,
				   sizeof(TableName), compare_table_names) != NULL;
}

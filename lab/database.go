package lab

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Exec runs statements (separated by semicolons) in the default database.
func (s *Server) Exec(ctx context.Context, sql string) error {
	c, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		return opErr("connect to server "+s.name, err)
	}
	defer c.Close(ctx)
	_, err = c.PgConn().Exec(ctx, sql).ReadAll()
	return opErr("run SQL on server "+s.name, err)
}

// DropDatabase drops a database together with its prepared transactions,
// replication slots and sessions.
func (s *Server) DropDatabase(ctx context.Context, name string) error {
	c, err := s.cleaner(ctx, name)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	if err := endWork(ctx, c); err != nil {
		return opErr("drop database "+name, err)
	}
	if err := c.Close(ctx); err != nil {
		return opErr("drop database "+name, err)
	}
	return s.Exec(ctx, "drop database "+pgx.Identifier{name}.Sanitize()+" with (force)")
}

// clearDatabase makes a used database like a new one, which takes a fifth of
// the CPU time of dropping it and making another. It reports false when
// something is left that it does not know how to drop.
func (s *Server) clearDatabase(ctx context.Context, name string) (clean bool, err error) {
	c, err := s.cleaner(ctx, name)
	if err != nil {
		return false, err
	}
	defer c.Close(ctx)
	if err := endWork(ctx, c); err != nil {
		return false, opErr("clear database "+name, err)
	}
	_, err = c.PgConn().Exec(ctx, dropContents).ReadAll()
	if err == nil {
		clean, err = isClean(ctx, c)
	}
	return clean, opErr("clear database "+name, err)
}

// cleaner opens a session on a database with settings that go before those
// which a test may have given to the database.
func (s *Server) cleaner(ctx context.Context, name string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(s.DSNFor(name))
	if err != nil {
		return nil, opErr("connect to server "+s.name, err)
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // which takes UTF8 only
	for setting, value := range map[string]string{
		"search_path": "pg_catalog", "default_transaction_read_only": "off", "lock_timeout": "10s",
		"client_encoding": "UTF8", "client_min_messages": "warning", "standard_conforming_strings": "on", "quote_all_identifiers": "off",
	} {
		cfg.RuntimeParams[setting] = value
	}
	c, err := pgx.ConnectConfig(ctx, cfg)
	return c, opErr("connect to database "+name, err)
}

// endWork ends the other sessions on a session's database and drops what
// outlives a session: prepared transactions and replication slots.
func endWork(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, `select pg_terminate_backend(pid, 5000) from pg_stat_activity
		where datname = current_database() and pid <> pg_backend_pid() and backend_type in ('client backend', 'walsender')`)
	if err != nil {
		return err
	}
	rows, _ := c.Query(ctx, "select gid from pg_prepared_xacts where database = current_database()")
	gids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, g := range gids {
		if _, err := c.Exec(ctx, "rollback prepared "+quote(g)); err != nil {
			return err
		}
	}
	_, err = c.Exec(ctx, "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()")
	return err
}

// dropContents drops what tests commonly make in a database. FirstNormalObjectId
// of the server is 16384: initdb's objects have lower oids.
const dropContents = `
do $$
declare
  r record;
begin
  execute format('alter database %I reset all', current_database());
  for r in
    select 1, format('drop event trigger %I', evtname) as drop from pg_event_trigger
    union all select 2, format('drop publication %I', pubname) from pg_publication
    union all select 3, format('drop extension %I cascade', extname) from pg_extension where oid >= 16384
    union all select 4, format('drop schema %I cascade', nspname) from pg_namespace
      where nspname !~ '^pg_' and nspname <> 'information_schema'
    order by 1
  loop
    execute r.drop;
  end loop;
  create schema public;
  comment on schema public is 'standard public schema';
  if exists (select from pg_roles where rolname = 'pg_database_owner') and current_setting('server_version_num')::int >= 150000 then
    alter schema public owner to pg_database_owner;
    grant usage on schema public to public;
  else
    grant all on schema public to public;
  end if;
end $$`

// isClean reports whether a database has no object, privilege or setting that a
// new one does not have.
func isClean(ctx context.Context, c *pgx.Conn) (clean bool, err error) {
	rows, _ := c.Query(ctx, `select relname from pg_class c
		where relnamespace = 'pg_catalog'::regnamespace and relkind = 'r' and not relisshared
		and exists (select from pg_attribute where attrelid = c.oid and attname = 'oid')`)
	catalogs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return false, err
	}
	var dirt []string
	for _, catalog := range catalogs {
		made := "select from " + catalog + " where oid >= 16384"
		if catalog == "pg_namespace" { // those of every database
			made += " and nspname <> 'public' and nspname !~ '^pg_(toast_)?temp_'"
		}
		dirt = append(dirt, made)
	}
	for catalog, prefix := range map[string]string{"pg_class": "rel", "pg_proc": "pro"} {
		dirt = append(dirt, fmt.Sprintf(`select from %s o left join pg_init_privs i on i.classoid = '%[1]s'::regclass and i.objoid = o.oid and i.objsubid = 0
			where %[2]snamespace = 'pg_catalog'::regnamespace and %[2]sacl is distinct from initprivs`, catalog, prefix))
	}
	dirt = append(dirt,
		"select from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase where d.datname = current_database()",
		"select from pg_database where datname = current_database() and (datacl is not null or datconnlimit <> -1)")
	err = c.QueryRow(ctx, "select not exists ("+strings.Join(dirt, "\nunion all ")+")").Scan(&clean)
	return clean, err
}

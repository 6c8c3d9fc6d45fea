// Package pgside holds what targets that are PostgreSQL servers have in common,
// whatever places the rows: how a server is connected to and named, how its error
// becomes a dtx.Error without row values and whether it passes by itself, how
// names and literals are quoted, how a column's value is compared in SQL, how a
// type of the catalogue is described, whether one printed type holds the values of
// another, which batch may follow, and how COPY text is read back. It opens no
// connection by itself, and the only statement it knows reads pg_type.
package pgside

// Package pgside holds what targets that are PostgreSQL servers have in common,
// whatever places the rows: how an error of a server becomes a dtx.Error without
// row values, how names and literals are quoted, how a column's value is compared
// in SQL, how a type of the catalogue is described, whether one printed type
// holds the values of another, and how COPY text is read back. It never opens a
// connection and never runs a statement.
package pgside

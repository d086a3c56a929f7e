package policy

// Domains is a set of names.
type Domains struct{}

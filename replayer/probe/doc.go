// Package probe asks targets, before a run and around it, what they are and how they count: models, version, dialect, configuration,
// round trip, tokens of text, and whether their prefix cache can be emptied. Nothing here is part of a load.
package probe

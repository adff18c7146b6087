// Package openai is the wire vocabulary of OpenAI-compatible services, shared by recorder and replayer: what a request asks for, which
// stream events carry tokens, and how tokens are counted.
package openai

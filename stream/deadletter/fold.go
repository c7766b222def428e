package deadletter

// FoldError returns the common part of errors of one kind, as in LetterGroup.Error: the first line, with # for each
// variable part.
func FoldError(text string) string { return foldError(text) }

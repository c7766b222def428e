package dashboard

// This file divides places among tokens, such as those of viewers, of running jobs and of searches.

// hasRoom reports whether a token that holds own places may take another one. It must leave more places free than it
// holds. So the first token gets half of all places, the second one half of the others, and so on.
func hasRoom(own, taken, all int) bool { return own < all-taken }

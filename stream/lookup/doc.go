// Package lookup finds messages, and changes nothing.
//
// Find looks for one message in all queues, and tells why the message waits. Locate looks for a message in one queue.
// Peek lists the messages that are due next, and DueBetween those that are due in a span of time. ReadStory reads the
// recorded changes of one message. ReadLatencies computes waits from the newest records of a queue.
//
// Streams may have a hundred thousand entries, and payloads a megabyte. The script find_entries therefore searches
// streams on the server, in bounded steps, and Find reads only the entries of the message.
//
// Invariants:
//   - a message is found in every state, in every partition and queue, even if it moves meanwhile
//     (TestLocateFollowsAMessageThroughAllStates, TestFindLooksInAllQueuesAndPartitions,
//     TestFindLooksAgainAtWhatCameMeanwhile);
//   - latencies are those that the records tell, and only the newest records are read
//     (TestLatenciesAreThoseOfTheRecords, TestLatenciesReadOnlyTheNewestRecords);
//   - the payloads of other messages are not read (TestFindReadsNoPayloadOfAnotherMessage).
package lookup

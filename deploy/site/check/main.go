// Command check reads a built site, and fails if a link leads nowhere or a page needs another host:
//
//	check [-base /path/] dist/site
//
// Each href and src of a page leads to a file of the site, and each #anchor to an element of that file. Scripts,
// styles, fonts and pictures are files of the site.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() { os.Exit(run()) }

func run() int {
	base := flag.String("base", "/", "path of the site on its host, with a slash at both ends")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		return 2
	}
	found, err := check(flag.Arg(0), *base)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, problem := range found.problems {
		fmt.Println(problem)
	}
	fmt.Printf("%d pages, %d links, %d problems\n", found.pages, found.links, len(found.problems))
	if len(found.problems) > 0 {
		return 1
	}
	return 0
}

package browser

import (
	"context"
	"fmt"
	"strings"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// aim is where an element is, and what a click on it does.
type aim struct {
	Why     string // the element cannot be clicked
	X, Y    float64
	Follows bool   // the click leads to another page
	Invalid string // name of a field whose value keeps the form from being sent
}

// aiming is a function that looks for the first visible element of a selector.
const aiming = `((selector) => {
	const element = [...document.querySelectorAll(selector)].find((e) => e.checkVisibility({visibilityProperty: true}) &&
		e.getClientRects().length > 0);
	if (!element) return {Why: "it is not visible"};
	if (element.matches(":disabled")) return {Why: "it is disabled"};
	element.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
	const box = element.getClientRects()[0];
	const found = {X: box.x + box.width / 2, Y: box.y + box.height / 2};
	const hit = document.elementFromPoint(found.X, found.Y);
	if (!hit || !element.contains(hit)) return {Why: "it is covered by " + hit?.outerHTML.slice(0, 200)};
	const link = element.closest("a[href]"), button = element.closest("button");
	if (link) {
		const to = new URL(link.getAttribute("href"), document.baseURI);
		found.Follows = !to.hash || to.href.split("#")[0] !== location.href.split("#")[0];
	} else if (button?.form && button.type === "submit" && button.dataset.download === undefined) {
		found.Follows = (button.formMethod || button.form.method) !== "dialog";
		if (!button.formNoValidate) found.Invalid = [...button.form.elements].find((e) => !e.checkValidity())?.name;
	}
	return found;
})`

// guarding is a function that cancels the next click if it hits another element than that of the selector. An update
// may move the page after the aim.
const guarding = `((selector) => {
	window.clicked = "nothing";
	document.addEventListener("click", (event) => {
		window.clicked = event.target.closest(selector) ? "it" : "another element";
		if (window.clicked !== "it") { event.preventDefault(); event.stopImmediatePropagation(); }
	}, {capture: true, once: true});
})`

// click waits until an element can be clicked, and clicks on it with the mouse. If the element is a link or sends a
// form, it then waits for the next page. It takes the first visible element of the CSS selector.
func (b *browser) click(selector string) {
	b.t.Helper()
	b.clickFor(selector, true)
}

// clickOnly clicks, and waits for no page: the answer is a file.
func (b *browser) clickOnly(selector string) {
	b.t.Helper()
	b.clickFor(selector, false)
}

func (b *browser) clickFor(selector string, follow bool) {
	b.t.Helper()
	var last aim
	b.until(func() (bool, string) {
		var now aim
		b.eval(fmt.Sprintf("%s(%q)", aiming, selector), &now)
		if before := last; now.Why != "" || now != before { // the page may still move
			last = now
			return false, fmt.Sprintf("%s cannot be clicked: %s", selector, now.Why)
		}
		if now.Invalid != "" {
			b.t.Fatalf("%s sends no form: the value of %s is not valid", selector, now.Invalid)
		}
		last = aim{}
		now.Follows = now.Follows && follow
		return b.clickAt(selector, now), selector + ": the click missed it, because the page moved"
	})
}

// clickAt clicks, and reports whether the click was on the element.
func (b *browser) clickAt(selector string, at aim) (hit bool) {
	b.t.Helper()
	b.eval(fmt.Sprintf("window.marked = true, %s(%q)", guarding, selector), nil)
	for _, kind := range []input.MouseType{input.MouseMoved, input.MousePressed, input.MouseReleased} {
		event := input.DispatchMouseEvent(kind, at.X, at.Y)
		if kind != input.MouseMoved {
			event = event.WithButton(input.Left).WithClickCount(1)
		}
		b.run(event)
	}
	if at.Follows {
		b.until(func() (bool, string) {
			l := b.look()
			hit = !l.Marked
			return hit && l.Ready || !hit && l.Clicked != "it", "the click leads to no other page from " + l.Address
		})
		return hit
	}
	return b.look().Clicked == "it"
}

// fill replaces the text of a field, as a person does who pastes it.
func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.until(func() (bool, string) {
		var there bool
		b.eval(fmt.Sprintf(`((field) => {
			if (!field?.checkVisibility()) return false;
			field.focus();
			field.select();
			return document.activeElement === field;
		})(document.querySelector(%q))`, selector), &there)
		if !there {
			return false, selector + " is not visible"
		}
		if text == "" {
			b.press("Backspace")
		} else {
			b.run(input.InsertText(text))
		}
		var value string
		b.eval(fmt.Sprintf("document.querySelector(%q)?.value", selector), &value)
		return value == text, fmt.Sprintf("%s has the value %q", selector, value)
	})
}

// set sets the value of a field without typing, as a date picker does, and tells the page. Of a select, it chooses.
func (b *browser) set(selector, value string) {
	b.t.Helper()
	b.until(func() (bool, string) {
		var there bool
		b.eval(fmt.Sprintf(`((field) => {
			if (!field?.checkVisibility()) return false;
			field.value = %q;
			for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, {bubbles: true}));
			return true;
		})(document.querySelector(%q))`, value, selector), &there)
		return there, selector + " is not visible"
	})
}

// namedKeys are keys that type no character.
var namedKeys = map[string]string{"Enter": kb.Enter, "Escape": kb.Escape, "Tab": kb.Tab, "Space": " ",
	"Backspace": kb.Backspace, "ArrowUp": kb.ArrowUp, "ArrowDown": kb.ArrowDown, "ArrowLeft": kb.ArrowLeft,
	"ArrowRight": kb.ArrowRight, "Home": kb.Home, "End": kb.End}

// press presses keys: characters, the names of namedKeys, and "Shift+Tab".
func (b *browser) press(keys ...string) {
	b.t.Helper()
	b.settles()
	for _, key := range keys {
		plain, shift := strings.CutPrefix(key, "Shift+")
		if name, ok := namedKeys[plain]; ok {
			plain = name
		}
		for _, r := range plain {
			b.run(chromedp.ActionFunc(func(ctx context.Context) error { return pressOne(ctx, r, shift) }))
		}
	}
}

// pressOne presses one key. A page that cancels the event of the key gets no character, as with a real keyboard.
// chromedp.KeyEvent sends the character in any case.
func pressOne(ctx context.Context, key rune, shift bool) error {
	events := kb.Encode(key)
	down, up := events[0], events[len(events)-1]
	if len(events) == 3 {
		down.Text, down.UnmodifiedText = events[1].Text, events[1].UnmodifiedText
	}
	if shift {
		down.Modifiers |= input.ModifierShift
		up.Modifiers |= input.ModifierShift
	}
	if err := down.Do(ctx); err != nil {
		return err
	}
	return up.Do(ctx)
}

// enter presses the key Enter, and waits for the page to which it leads.
func (b *browser) enter() {
	b.t.Helper()
	b.follow(func() { b.press("Enter") })
}

// tabTo presses Tab until an element has the focus.
func (b *browser) tabTo(selector string) {
	b.t.Helper()
	for range 100 {
		b.press("Tab")
		var there bool
		if b.eval(fmt.Sprintf("document.activeElement.matches(%q)", selector), &there); there {
			return
		}
	}
	b.t.Fatalf("the key Tab does not reach %s", selector)
}

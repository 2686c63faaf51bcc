// What teaching/tests/test_website.py looks for on a page; it is there as `checks` before the page's own scripts run.
"use strict";

window.checks = {
    // Wait until formulas are drawn, slides are laid out.
    drawn: async () => {
        await window.MathJax?.startup.promise;
        if ('Reveal' in window && !Reveal.isReady()) await new Promise(done => Reveal.on('ready', done));
    },

    // Show all slides of a deck at once, one below the other, so that axe sees each; return how many stay unseen.
    showAllSlides: () => {
        Reveal.configure({ disableLayout: true }); // a late answer to a new width would make all small again
        for (const slide of document.querySelectorAll('.slides section')) {
            slide.classList.remove('past', 'present', 'future', 'stack');
            for (const name of ['hidden', 'aria-hidden', 'inert']) slide.removeAttribute(name);
            slide.style.cssText = 'display: block; position: static; visibility: visible; opacity: 1; transform: none; '
                + 'height: auto; overflow: visible';
        }
        for (const part of document.querySelectorAll('.fragment')) part.style.cssText = 'opacity: 1; visibility: visible';
        for (const part of document.querySelectorAll('.backgrounds, .controls, .progress')) part.remove();
        for (const part of document.querySelectorAll('html, body, .reveal, .slides'))
            part.style.cssText = 'position: static; overflow: visible; height: auto; width: auto; transform: none; zoom: 1';
        return [...document.querySelectorAll('.slides section section')].filter(slide => slide.offsetHeight < 40).length;
    },

    // Words and pictures that are cut at the right edge of a narrow or enlarged page, where nothing scrolls them into
    // sight. (Boxes that scroll and cannot be reached with Tab: axe finds them.)
    cut: () => {
        const page = document.documentElement;
        const scrolls = at => at !== document.body && (at.scrollWidth > at.clientWidth + 1
            && ['auto', 'scroll'].includes(getComputedStyle(at).overflowX) || scrolls(at.parentElement));
        const found = [...document.querySelectorAll('article *, .list *')].filter(element =>
            element.getBoundingClientRect().right > page.clientWidth + 1 && !element.children.length
            && !element.closest('mjx-assistive-mml, script, .headerlink') && !scrolls(element));
        return [...found.map(element => element.outerHTML.slice(0, 120)),
            ...page.scrollWidth > page.clientWidth ? [`the page is ${page.scrollWidth} px wide`] : []];
    },

    // What axe-core finds. Contrast takes most of its time, so it is computed once for each chain of tags and classes.
    axe: async tags => {
        const kind = element => {
            const path = [];
            for (let at = element; at; at = at.parentElement) path.push(at.tagName, at.getAttribute('class'));
            return `${path}`;
        };
        const first = new Map();
        const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) {
            const element = walk.currentNode.parentElement;
            if (walk.currentNode.data.trim() && !first.has(kind(element))) first.set(kind(element), element);
        }
        for (const element of first.values()) element.setAttribute('data-first-of-its-kind', '');
        axe.configure({ rules: [{ id: 'color-contrast', selector: '[data-first-of-its-kind]' }] });
        const result = await axe.run(document, { runOnly: tags, resultTypes: ['violations'], preload: false });
        return result.violations.map(rule =>
            `${rule.id}: ${rule.nodes.slice(0, 3).map(node => node.html.slice(0, 150)).join(' | ')}`);
    },

    // Formulas that are still TeX, or that MathJax could not read.
    notDrawn: () => [...document.querySelectorAll('.math, .slides section')].filter(part =>
        part.querySelector('[data-mml-node="merror"]') || /\\[([]/.test(part.textContent)
        || (part.matches('.math') && !part.querySelector('mjx-container'))).map(part => part.textContent.slice(0, 80)),
};

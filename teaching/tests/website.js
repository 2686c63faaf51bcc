// What teaching/tests/test_website.py looks for on a page; it is there as `checks` before the page's own scripts run.
"use strict";

window.checks = {
    // Wait until formulas are drawn.
    drawn: () => window.MathJax?.startup.promise,

    // Words and pictures that are cut at the right edge of a narrow or enlarged page, where nothing scrolls them into
    // sight. (Boxes that scroll and cannot be reached with Tab: axe finds them.)
    cut: () => {
        const page = document.documentElement;
        const scrolls = at => at !== document.body && (at.scrollWidth > at.clientWidth + 1
            && ['auto', 'scroll'].includes(getComputedStyle(at).overflowX) || scrolls(at.parentElement));
        const found = [...document.querySelectorAll('article *')].filter(element =>
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
    notDrawn: () => [...document.querySelectorAll('.math')].filter(part =>
        part.querySelector('[data-mml-node="merror"]') || !part.querySelector('mjx-container')).map(part => part.textContent.slice(0, 80)),
};

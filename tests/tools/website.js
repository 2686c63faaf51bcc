// What tests/tools/test_website.py looks for on a page; it is there as `checks` before the page's own scripts run.
"use strict";

window.checks = {
    // An explorer's picture, its description, its caption, and what a screen reader says of the control.
    state: async control => {
        const figure = control.closest('figure'), picture = figure.querySelector('img');
        await picture.decode();
        return [picture.src, picture.alt, figure.querySelector('figcaption').textContent,
            control.getAttribute('aria-valuetext') ?? control.value];
    },

    // Slides wider or higher than the screen, and words too small for the last row: under 24 px, code under 18 px.
    unreadable: () => Reveal.getSlides().flatMap(slide => {
        const { h, v } = Reveal.getIndices(slide), found = []; Reveal.slide(h, v);
        const begin = slide.textContent.trim().slice(0, 60);
        if (slide.scrollWidth > 1280 || slide.scrollHeight > 720)
            found.push(`${slide.scrollWidth} x ${slide.scrollHeight}: ${begin}`);
        const walk = document.createTreeWalker(slide, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) {
            const element = walk.currentNode.parentElement, data = walk.currentNode.data.trim();
            if (!data || element.closest('aside, script, mjx-container') || !element.getClientRects().length) continue;
            const size = Reveal.getScale() * parseFloat(getComputedStyle(element).fontSize);
            if (size < (element.closest('pre, code') ? 18 : 24))
                found.push(`letters of ${size.toFixed(1)} px: ${data.slice(0, 40)}`);
        }
        return found;
    }),

    // Show all slides of a deck at once, one below the other, so that axe sees each; return how many stay unseen.
    showAllSlides: () => {
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

    // What a reader of a narrow or enlarged page would miss: words and pictures cut at the right edge, boxes that
    // scroll and cannot be reached with Tab.
    missed: () => {
        const page = document.documentElement, found = [], say = element => element.outerHTML.slice(0, 120);
        if (page.scrollWidth > page.clientWidth) found.push(`the page is ${page.scrollWidth} px wide`);
        const box = element => {
            for (let at = element; at && at !== document.body; at = at.parentElement)
                if (['auto', 'scroll'].includes(getComputedStyle(at).overflowX) && at.scrollWidth > at.clientWidth + 1)
                    return at;
        };
        for (const element of document.querySelectorAll('article *, .list *')) {
            if (!element.getClientRects().length || element.closest('mjx-assistive-mml, script, .headerlink')) continue;
            const shows = element.matches('img, input, select, svg') || [...element.childNodes].some(
                node => node.nodeType === 3 && node.data.trim());
            if (!shows || element.getBoundingClientRect().right <= page.clientWidth + 1) continue;
            const inside = box(element);
            if (!inside) found.push(`cut: ${say(element)}`);
            else if (inside.tabIndex < 0 && !inside.matches('.content')) found.push(`out of reach: ${say(inside)}`);
        }
        return [...new Set(found)].slice(0, 8);
    },

    // What axe-core finds. Contrast takes most of its time, so it is computed once for each chain of tags and classes;
    // coloured letters in code become plain text where their chain was seen before.
    axe: async tags => {
        const kind = element => {
            const path = [];
            for (let at = element; at; at = at.parentElement) path.push(at.tagName, at.getAttribute('class'));
            return `${path}`;
        };
        const first = new Map();
        for (const letters of document.querySelectorAll('pre span')) {
            if (first.has(kind(letters))) letters.replaceWith(letters.textContent); else first.set(kind(letters), letters);
        }
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

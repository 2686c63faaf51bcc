"""What other programs show of a page when somebody shares its address: title, description, a picture."""

import html
import textwrap

from teaching.website.downloads import address

LENSES = "_static/preview.png", (1280, 656), "Arrows that RoPE turned, and the attention weights of one head."
FAULTS = "_static/faults.png", (1760, 704), "Angles of one sentence's streams under three faults; hatched: unchanged."


def tags(title: str, description: str, page: str) -> str:
    """HTML for the head of a page, such as "notebooks/02_rope.html"; its title and description are plain text.

    The picture's address is whole if COURSE_SITE says where the site will stand: most programs show it only then.
    """
    site, words = address(), textwrap.shorten(description, 200, placeholder=" …")
    properties = {"title": title, "description": words, "type": "website", "site_name": "LLaMA in notebooks"}
    picture, (width, height), alt = FAULTS if page in ("index.html", "broken.html") else LENSES
    properties["image"] = f"{site}/{picture}" if site else "../" * page.count("/") + picture
    properties |= {"image:width": width, "image:height": height, "image:alt": alt}
    properties |= {"url": f"{site}/{page}"} if site else {}
    named = {"description": words, "twitter:card": "summary_large_image"}
    lines = [f'<meta name="{name}" content="{html.escape(str(value))}">' for name, value in named.items()]
    lines += [f'<meta property="og:{name}" content="{html.escape(str(value))}">' for name, value in properties.items()]
    return "\n".join(lines)

"""What other programs show of a page when somebody shares its address: title, description, a picture."""

import html
import textwrap

from teaching.website.downloads import address

PICTURE, SIZE = "_static/preview.png", (1280, 656)  # docs/lenses.png, whose shape is that of preview cards [px]
ALT = "Arrows that RoPE turned by 29 degrees each, and the attention weights of one head."


def tags(title: str, description: str, page: str) -> str:
    """HTML for the head of a page.

    The picture's address is whole if COURSE_SITE says where the site will stand: most programs show it only then.

    Args:
        title: of the page, plain text.
        description: plain text; of a long one, the first 200 characters are taken.
        page: its path in the site, such as "notebooks/02_rope.html".
    """
    site, words = address(), textwrap.shorten(description, 200, placeholder=" …")
    properties = {"title": title, "description": words, "type": "website", "site_name": "LLaMA in notebooks"}
    properties["image"] = f"{site}/{PICTURE}" if site else "../" * page.count("/") + PICTURE
    properties |= {"image:width": SIZE[0], "image:height": SIZE[1], "image:alt": ALT}
    properties |= {"url": f"{site}/{page}"} if site else {}
    named = {"description": words, "twitter:card": "summary_large_image"}
    lines = [f'<meta name="{name}" content="{html.escape(str(value))}">' for name, value in named.items()]
    lines += [f'<meta property="og:{name}" content="{html.escape(str(value))}">' for name, value in properties.items()]
    return "\n".join(lines)

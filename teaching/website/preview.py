"""What other programs show of a page when somebody shares its address: title, description, a picture."""

import html
import textwrap
from pathlib import Path

from matplotlib.font_manager import FontProperties, findfont
from PIL import Image, ImageDraw, ImageFont

from teaching.website.downloads import address

PICTURE, SIZE = "_static/preview.png", (1200, 630)  # the size that preview cards have [px]
ALT = "LLaMA in notebooks: arrows that RoPE turned by 29 degrees each, and the attention weights of one head."


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


def draw(lenses: list[Path], out: Path):
    """Write the picture into `out`: the course's name above its two lenses."""
    card = Image.new("RGB", SIZE, "white")
    draw = ImageDraw.Draw(card)
    bold, plain = (findfont(FontProperties(family="DejaVu Sans", weight=weight)) for weight in ("bold", "normal"))
    draw.rectangle((0, 0, 16, SIZE[1]), fill="#00527f")
    draw.text((60, 40), "LLaMA in notebooks", "#222222", ImageFont.truetype(bold, 64))
    words = "Build it part by part in PyTorch. Break it, and see what it writes then."
    draw.text((62, 128), words, "#222222", ImageFont.truetype(plain, 29))
    for left, path in zip((60, 640), lenses, strict=True):
        lens = Image.open(path)
        lens.thumbnail((510, 420))
        card.paste(lens, (left + (510 - lens.width) // 2, 190 + (420 - lens.height) // 2))
    card.save(out / PICTURE)

"""Draws the picture of the lab: its first page in a browser, while sliders move."""

import io
import os
import shutil
import subprocess
import sys

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

from fedhsa.lab.serving import bound

SIZE: ViewportSize = {"width": 1180, "height": 760}
MOVES = ((3, "ArrowLeft", 4), (2, "ArrowRight", 4), (4, "ArrowLeft", 4), (3, "ArrowRight", 3))
"""The sliders that move in the animation, step size, local steps, spread and step size: index, key, repetitions."""


def frame(page) -> Image.Image:
    """What the browser shows, half as large."""
    shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return shown.resize((SIZE["width"] * 3 // 4, SIZE["height"] * 3 // 4), Image.Resampling.LANCZOS)


def main() -> None:
    """Leaves `lab.gif` in the current folder."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with bound("127.0.0.1", None) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "fedhsa", "lab", "--no-browser", "--port", port]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert server.stdout is not None
    server.stdout.readline()  # it listens
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE)
            page.goto(f"http://localhost:{port}/")
            page.wait_for_selector("#code")
            page.wait_for_timeout(2000)
            frames = [frame(page)]
            for slider, key, times in MOVES:
                page.get_by_role("slider").nth(slider).focus()
                for _ in range(times):
                    page.keyboard.press(key)
                    page.wait_for_timeout(900)
                    frames.append(frame(page))
            browser.close()
    finally:
        server.terminate()
        server.communicate()
    palette = frames[0].quantize(255, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    lengths = [1500, *[350] * (len(small) - 2), 1500]
    small[0].save("lab.gif", save_all=True, append_images=small[1:], duration=lengths, loop=0, optimize=True)


if __name__ == "__main__":
    main()

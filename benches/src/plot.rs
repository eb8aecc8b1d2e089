//! Drawing of the plots: a page of SVG that is legible on white and on black.

use std::fmt::Write;

/// The colour of a file system, by the beginning of its name.
pub fn colour(name: &str) -> &'static str {
    const COLOURS: [(&str, &str); 6] = [
        ("larder", "#8b5fbf"),
        ("passthrough", "#3b82c4"),
        ("ext4", "#7a8794"),
        ("xfs", "#b0893b"),
        ("btrfs", "#4a9d5f"),
        ("zfs-fuse", "#c2573f"),
    ];
    COLOURS.iter().find(|(known, _)| name.starts_with(known)).map_or("#888", |(_, colour)| colour)
}

/// Which end of a text its position means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its beginning.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// A page under way.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// Adds an element as it is.
    pub fn put(&mut self, element: &str) {
        writeln!(self.0, "{element}").expect("a string takes what is written");
    }

    /// Adds a text, which must need no escapes.
    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        self.put(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{text}</text>"));
    }

    /// Adds a line of one of the classes `grid` (faint), `one` (plain), `asked` (strong).
    pub fn path(&mut self, class: &str, path: &str) {
        self.put(&format!("<path class=\"{class}\" d=\"{path}\"/>"));
    }

    /// Says what the colour of `name` stands for; gives the place for the next.
    pub fn key(&mut self, x: f64, y: f64, name: &str) -> f64 {
        let colour = colour(name);
        self.put(&format!(
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\" fill=\"{colour}\"/>",
            y - 8.0
        ));
        self.text(x + 12.0, y, Anchor::Start, name);
        x + 20.0 + 5.6 * name.len() as f64
    }

    /// The elements so far.
    pub fn body(&self) -> &str {
        &self.0
    }

    /// The whole document.
    pub fn svg(self, width: f64, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"11\">\n<style>text{{fill:#333}}path{{fill:none}}.grid{{stroke:#8884}}.one{{stroke:#888}}\
             .asked{{stroke:#000;stroke-width:2}}@media(prefers-color-scheme:dark){{text{{fill:#ccc}}\
             .asked{{stroke:#fff}}}}</style>\n{}</svg>\n",
            self.0
        )
    }
}

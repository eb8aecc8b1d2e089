//! Columns of text, two spaces apart.

/// A column's head and alignment.
#[derive(Debug, Clone)]
pub struct Column {
    head: String,
    right: bool,
    least: usize,
}

impl Column {
    /// A column of words.
    pub fn left(head: impl Into<String>) -> Self {
        Self { head: head.into(), right: false, least: 0 }
    }

    /// A column of numbers, at least `least` characters wide.
    pub fn right(head: impl Into<String>, least: usize) -> Self {
        Self { head: head.into(), right: true, least }
    }
}

/// Rows under columns.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: Vec<Column>) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a cell for every column");
        self.rows.push(cells);
    }

    /// The number of rows.
    pub fn height(&self) -> usize {
        self.rows.len()
    }

    /// The text: aligned with heads, or for scripts tab-separated without.
    pub fn render(&self, scripted: bool) -> String {
        if scripted {
            return self.rows.iter().map(|row| row.join("\t") + "\n").collect();
        }
        let heads: Vec<String> = self.columns.iter().map(|column| column.head.clone()).collect();
        let lines = || std::iter::once(&heads).chain(&self.rows);
        let widths: Vec<usize> = (self.columns.iter().enumerate())
            .map(|(at, column)| {
                lines().map(|row| row[at].chars().count()).max().unwrap_or(0).max(column.least)
            })
            .collect();
        lines().map(|row| self.line(row, &widths)).collect()
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let cells = row.iter().zip(&self.columns).zip(widths).map(|((cell, column), &width)| {
            if column.right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    }
}

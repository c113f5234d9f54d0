//! Tables as CSV.

use std::io::{self, Write};

use super::{
    table::{Column, Table},
    time,
};

/// Writes a header line and the rows. What is missing is empty.
pub(super) fn write(table: &Table, to: &mut impl Write) -> io::Result<()> {
    let mut csv = csv::Writer::from_writer(to);
    csv.write_record(table.columns.iter().map(|(name, _)| name))?;
    for row in 0..table.rows() {
        csv.write_record(table.columns.iter().map(|(_, column)| cell(column, row)))?;
    }
    csv.flush()
}

fn cell(column: &Column, row: usize) -> String {
    let text = match column {
        Column::Int(values) => values[row].map(|value| value.to_string()),
        Column::Float(values) => values[row].map(|value| format!("{value:?}")),
        Column::Bool(values) => values[row].map(|value| value.to_string()),
        Column::Text(values) => values[row].clone(),
        Column::Time(values) => values[row].map(time::utc),
    };
    text.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let columns = vec![
            ("a,b".to_owned(), Column::Float(vec![Some(1e-5), None, Some(f64::NAN)])),
            (
                "why".to_owned(),
                Column::Text(vec![Some("it said \"no\"\nand left".to_owned()), None, Some(String::new())]),
            ),
            ("at".to_owned(), Column::Time(vec![Some(0.5), None, None])),
        ];
        let mut bytes = Vec::new();
        write(&Table { columns }, &mut bytes).expect("memory takes it");
        let text = String::from_utf8(bytes).expect("text");
        let wanted =
            "\"a,b\",why,at\n1e-5,\"it said \"\"no\"\"\nand left\",1970-01-01T00:00:00.500000Z\n,,\nNaN,,\n";
        assert_eq!(text, wanted);
    }
}

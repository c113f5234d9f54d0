//! Tables as Parquet.

use std::{
    io::{self, Write},
    sync::Arc,
};

use parquet::{
    basic::{ConvertedType, Repetition, Type as Physical},
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type},
    errors::ParquetError,
    file::{
        properties::WriterProperties,
        writer::{SerializedColumnWriter, SerializedFileWriter},
    },
    schema::types::Type,
};

use super::{
    table::{Column, Table},
    time,
};

/// Writes a file of one row group. What is missing is null.
pub(super) fn write(table: &Table, to: &mut (impl Write + Send)) -> io::Result<()> {
    write_table(table, to).map_err(|error| match error {
        ParquetError::External(source) => io::Error::other(source),
        error => io::Error::other(error),
    })
}

fn write_table(table: &Table, to: &mut (impl Write + Send)) -> Result<(), ParquetError> {
    let fields = table.columns.iter().map(|(name, column)| field(name, column).map(Arc::new));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Type::group_type_builder("trials").with_fields(fields).build()?;
    let properties = WriterProperties::builder()
        .set_created_by(concat!("pollux-tune ", env!("CARGO_PKG_VERSION")).to_owned());
    let mut file = SerializedFileWriter::new(to, Arc::new(schema), Arc::new(properties.build()))?;
    let mut group = file.next_row_group()?;
    for (_, column) in &table.columns {
        if let Some(mut writer) = group.next_column()? {
            write_column(column, &mut writer)?;
            writer.close()?;
        }
    }
    group.close()?;
    file.close().map(drop)
}

fn field(name: &str, column: &Column) -> Result<Type, ParquetError> {
    let (physical, converted) = match column {
        Column::Int(_) => (Physical::INT64, ConvertedType::NONE),
        Column::Float(_) => (Physical::DOUBLE, ConvertedType::NONE),
        Column::Bool(_) => (Physical::BOOLEAN, ConvertedType::NONE),
        Column::Text(_) => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
        Column::Time(_) => (Physical::INT64, ConvertedType::TIMESTAMP_MICROS),
    };
    let field = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
    field.with_converted_type(converted).build()
}

fn write_column(column: &Column, to: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
    match column {
        Column::Int(values) => write_values::<Int64Type, _>(values, to, |value| *value),
        Column::Float(values) => write_values::<DoubleType, _>(values, to, |value| *value),
        Column::Bool(values) => write_values::<BoolType, _>(values, to, |value| *value),
        Column::Text(values) => {
            write_values::<ByteArrayType, _>(values, to, |text| ByteArray::from(text.as_str()))
        }
        Column::Time(values) => write_values::<Int64Type, _>(values, to, |at_s| time::micros(*at_s)),
    }
}

/// Values, and where there are any.
fn write_values<T: DataType, V>(
    values: &[Option<V>],
    to: &mut SerializedColumnWriter<'_>,
    convert: impl Fn(&V) -> T::T,
) -> Result<(), ParquetError> {
    let there: Vec<i16> = values.iter().map(|value| value.is_some().into()).collect();
    let values: Vec<T::T> = values.iter().flatten().map(convert).collect();
    to.typed::<T>().write_batch(&values, Some(&there), None).map(drop)
}

#[cfg(test)]
mod tests {
    use parquet::{
        file::reader::{FileReader, SerializedFileReader},
        record::RowAccessor,
    };

    use super::{
        super::{record::tests::record, table},
        *,
    };

    #[test]
    fn what_is_written_is_read_again() {
        let (mut bytes, table) = (Vec::new(), table::of_trials(&record()));
        write(&table, &mut bytes).expect("memory takes it");
        let file = tempfile(&bytes);
        let reader = SerializedFileReader::new(file).expect("a Parquet file");
        let rows: Vec<_> = reader.get_row_iter(None).expect("rows").map(|row| row.expect("a row")).collect();
        let place = |name| table.columns.iter().position(|(known, _)| known == name).expect("it is there");
        assert_eq!(rows.len(), 3);
        assert!((rows[0].get_double(place("values_acc")).expect("a number") - 0.75).abs() < 1e-12);
        assert_eq!(rows[1].get_string(place("state")).expect("a text"), "stopped");
        assert_eq!(rows[1].get_timestamp_micros(place("ended")).expect("a moment"), 1_030_500_000);
        assert!(rows[2].get_timestamp_micros(place("ended")).is_err(), "null");
    }

    fn tempfile(bytes: &[u8]) -> std::fs::File {
        let path = std::env::temp_dir().join(format!("pollux-tune-parquet-{}", std::process::id()));
        std::fs::write(&path, bytes).expect("it can be written");
        let file = std::fs::File::open(&path).expect("it is there");
        std::fs::remove_file(&path).expect("it is ours");
        file
    }
}

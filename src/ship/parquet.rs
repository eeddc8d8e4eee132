//! Dataset rows as a Parquet file.
//!
//! Owns the columns: the keys of the JSON rows, in their order. Messages are one column of JSON text,
//! because tool arguments have no fixed shape; `_episode_id` is text, because some ids are numbers and
//! some are names. Deliberately absent: reading Parquet.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::Value;

use super::row::Row;
use backsight_core::python::{JsonStyle, json_dumps};

const SCHEMA: &str = "
message row {
  required binary messages (STRING);
  required group step_advantages (LIST) { repeated group list { required double element; } }
  required group step_message_indices (LIST) { repeated group list { required int64 element; } }
  required binary _episode_id (STRING);
  required double _reward;
  required double _grpo_advantage;
  required int64 _num_steps;
  optional group token_ids (LIST) {
    repeated group list { required group element (LIST) { repeated group list { required int32 element; } } } }
  optional group token_weights (LIST) {
    repeated group list { required group element (LIST) { repeated group list { required double element; } } } }
  optional group step_spans (LIST) {
    repeated group list { required group element (LIST) { repeated group list { required int64 element; } } } }
}";

/// Rows that are held in memory as columns at a time.
const GROUP: usize = 64;

/// Writes a Parquet file with these rows.
pub fn write(rows: &[Row], file: &mut (dyn Write + Send)) -> Result<(), ParquetError> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
    for rows in rows.chunks(GROUP) {
        let mut group = writer.next_row_group()?;
        columns(rows, &mut group)?;
        group.close()?;
    }
    writer.close().map(drop)
}

type Group<'a, 'w> = SerializedRowGroupWriter<'a, &'w mut (dyn Write + Send)>;

fn columns(rows: &[Row], group: &mut Group<'_, '_>) -> Result<(), ParquetError> {
    let messages =
        |row: &Row| text(json_dumps(&Value::Array(row.messages.clone()), &JsonStyle::transformers()));
    flat::<ByteArrayType>(group, rows.iter().map(messages).collect())?;
    lists::<DoubleType>(group, rows.iter().map(Row::weights).collect())?;
    lists::<Int64Type>(group, rows.iter().map(|row| integers(&row.step_messages)).collect())?;
    flat::<ByteArrayType>(group, rows.iter().map(|row| text(id_text(&row.episode_id))).collect())?;
    flat::<DoubleType>(group, rows.iter().map(|row| row.reward.as_f64().unwrap_or(f64::NAN)).collect())?;
    flat::<DoubleType>(group, rows.iter().map(|row| row.reward_advantage).collect())?;
    flat::<Int64Type>(group, rows.iter().map(|row| row.step_weights.len() as i64).collect())?;
    let ids = |row: &Row| {
        Some(row.tokens.as_ref()?.ids.iter().map(|ids| ids.iter().map(|id| *id as i32).collect()).collect())
    };
    nested::<Int32Type>(group, rows.iter().map(ids).collect())?;
    let weights = |row: &Row| Some(row.tokens.as_ref()?.weights(&row.step_weights));
    nested::<DoubleType>(group, rows.iter().map(weights).collect())?;
    let spans = |row: &Row| {
        let spans = row.tokens.as_ref()?.spans.iter();
        Some(spans.map(|span| span.map(|it| integers(&it)).unwrap_or_default()).collect())
    };
    nested::<Int64Type>(group, rows.iter().map(spans).collect())
}

fn text(text: String) -> ByteArray {
    ByteArray::from(text.into_bytes())
}

fn id_text(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}

fn integers(values: &[usize]) -> Vec<i64> {
    values.iter().map(|value| *value as i64).collect()
}

/// A column with one value a row.
fn flat<T: DataType>(group: &mut Group<'_, '_>, values: Vec<T::T>) -> Result<(), ParquetError> {
    column::<T>(group, &values, None)
}

/// A column with a list a row. An empty list is written as a missing first element.
fn lists<T: DataType>(group: &mut Group<'_, '_>, rows: Vec<Vec<T::T>>) -> Result<(), ParquetError> {
    let (mut values, mut levels) = (Vec::new(), Levels::default());
    for row in rows {
        if row.is_empty() {
            levels.push(0, 0);
        }
        for (idx, value) in row.into_iter().enumerate() {
            levels.push(1, i16::from(idx > 0));
            values.push(value);
        }
    }
    column::<T>(group, &values, Some(&levels))
}

/// A column with a list of lists a row, or nothing.
fn nested<T: DataType>(
    group: &mut Group<'_, '_>,
    rows: Vec<Option<Vec<Vec<T::T>>>>,
) -> Result<(), ParquetError> {
    let (mut values, mut levels) = (Vec::new(), Levels::default());
    for row in rows {
        match &row {
            None => levels.push(0, 0),
            Some(lists) if lists.is_empty() => levels.push(1, 0),
            Some(_) => {}
        }
        for (outer, list) in row.into_iter().flatten().enumerate() {
            if list.is_empty() {
                levels.push(2, i16::from(outer > 0));
            }
            for (inner, value) in list.into_iter().enumerate() {
                levels.push(3, if inner > 0 { 2 } else { i16::from(outer > 0) });
                values.push(value);
            }
        }
    }
    column::<T>(group, &values, Some(&levels))
}

/// How deep each entry is defined, and at which depth it repeats the one before.
#[derive(Default)]
struct Levels {
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl Levels {
    fn push(&mut self, definition: i16, repetition: i16) {
        self.definition.push(definition);
        self.repetition.push(repetition);
    }
}

/// Writes the next column of the schema.
fn column<T: DataType>(
    group: &mut Group<'_, '_>,
    values: &[T::T],
    levels: Option<&Levels>,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("the schema has fewer columns than are written".to_owned());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    let definition = levels.map(|levels| levels.definition.as_slice());
    let repetition = levels.map(|levels| levels.repetition.as_slice());
    column.typed::<T>().write_batch(values, definition, repetition)?;
    column.close()
}

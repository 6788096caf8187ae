-- questions: require that a message that answers a question with a JSON Schema has been validated. A section has the fields
-- of AnswerSection in answer_section.py.
-- requires: time

-- Return {'question', run that asked, JSON Schema} if the caller must validate the message.
local function validate(questions, keys, r)
  if r.phase ~= '' or questions.validated_run == r.run then return nil end
  local schema = r.answer_schema
  return schema and {'question', micros(r.run), schema}
end

"""Shop assistant as a LangGraph graph. It pays a refund only after a person approves the refund."""

from celery import Celery
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt
from pydantic import BaseModel, Field
from stand_in import StandIn

from a2a_celery import A2A
from a2a_celery.frameworks.langgraph import langgraph_agent


class Approval(BaseModel):
    """Answer of the person who decides about a refund."""

    approved: bool = Field(title="Pay this refund?")
    note: str = Field(default="", title="Note to the customer", max_length=200)


@tool
def refund(order: str, amount: float) -> str:
    """Refund an order after a person approves it."""
    approval = interrupt(f"Refund {amount:.2f} for order {order}?", response_schema=Approval)
    if not approval.approved:
        return f"The refund of order {order} was declined. {approval.note}".strip()
    return f"{amount:.2f} for order {order} was refunded. {approval.note}".strip()


tools = [refund]
model = StandIn().bind_tools(tools)


async def ask_model(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Return the model's answer to the conversation."""
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("model", ask_model)
graph.add_node("tools", ToolNode(tools))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")

app = Celery("assistant")  # CELERY_BROKER_URL
a2a = A2A(app)
a2a.agent("assistant", description="Helps with orders. Refunds need an approval.", session=True, max_attempts=3)(
    langgraph_agent(graph)
)
